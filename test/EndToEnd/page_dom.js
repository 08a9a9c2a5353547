// Runs the script of a page of fsdp-plan --html in a document of stubs. Prints what it shows as JSON: the texts of elements in the order in
// which they were made, and how many rectangles were painted in each color.
"use strict";
const html = require("fs").readFileSync(process.argv[2], "utf8");
const texts = [], painted = {}, elements = {};

function makeElement(tag) {
  let text = "";
  const pen = new Proxy({}, {get: (own, name) => name in own ? own[name] : name === "fillRect" ? () => {
    painted[own.fillStyle] = (painted[own.fillStyle] || 0) + 1;
  } : () => {}});
  return {
    tag, style: {}, clientWidth: 1000,
    get textContent() { return text; },
    set textContent(value) { text = String(value); texts.push(text); },
    appendChild: child => child, setAttribute: () => {}, after: value => texts.push(value), remove: () => {}, getContext: () => pen,
    getBoundingClientRect: () => ({left: 0, top: 0, width: 1000}), setPointerCapture: () => {},
  };
}
global.window = {devicePixelRatio: 1, innerWidth: 1200};
global.requestAnimationFrame = paint => paint();
global.cancelAnimationFrame = () => {};
global.document = {
  createElement: makeElement, createElementNS: (space, tag) => makeElement(tag), querySelector: makeElement,
  getElementById: name => elements[name] ||= makeElement(name),
};
const [, data, script] = html.match(/<script type="application\/json" id="data">(.*?)<\/script>\s*<script>(.*?)<\/script>/s);
document.getElementById("data").textContent = data;
texts.length = 0;
new Function(script + `
  show(0, program.length / 10);
  id("time").onpointermove({clientX: LEFT + 1, clientY: 1});
  id("memory").onpointermove({clientX: 500, clientY: 1});
  id("time").onwheel({clientX: 500, deltaY: 100, preventDefault() {}});
`)();
process.stdout.write(JSON.stringify({texts, painted}));
