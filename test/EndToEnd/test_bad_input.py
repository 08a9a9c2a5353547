"""What cannot be done is rejected by one sentence before anything is written or run: exit status 1, no file, no crash."""

import ctypes
import re
import shutil
import struct
import subprocess

import pytest
from conftest import BUILD, FIXTURES, succeed, tool

TINY = FIXTURES / "role_tiny.pt2"


def rejection(name, *arguments):
    """What stands on stderr of a rejected command; `fsdp-translate` adds the place in the text."""
    result = tool(name, *arguments)
    assert result.returncode == 1, result.stdout + result.stderr
    assert result.stdout == ""
    return result.stderr


SIZE = "bytes, or a decimal number with KiB, MiB, GiB, KB, MB or GB"

NO_DECAY = "a regular expression of names of parameters, dims<N with N of at least 1, or both as dims<N|REGEX"
NO_MODULES = ("fsdp-plan: error: expected modules inside of the model, which are what is recomputed, found none: make modules of its parts, or capture it with "
              "fsdp_mlir.capture if the archive does not name them")

OFFLOAD = f"none, params, optimizer, all, auto or bytes=SIZE, which is {SIZE}"

CLIP = "a largest norm that is finite and above 0, and after a colon its order"

USAGE = {
    "--ranks 0": "fsdp-plan: error: --ranks: expected a number of at least 1; found '0'",
    "--ranks -1": "fsdp-plan: error: --ranks: expected a number of at least 1; found '-1'",
    "--ranks x": "fsdp-plan: error: --ranks: expected a number of at least 1; found 'x'",
    "--ranks 100000000000": "fsdp-plan: error: --ranks: expected a number of at most 2147483647; found '100000000000'",
    "--ranks 2 --remarks-filter " + "(" * 100_000: "fsdp-plan: error: --remarks-filter: expected a regular expression of at most 1000 characters, found 100000",
    "--ranks 2 --wrap scope:" + "(" * 100_000:
        "fsdp-plan: error: expected a regular expression of at most 1000 characters, found 100000",
    "--ranks 2 --remat scope:" + "(" * 100_000:
        "fsdp-plan: error: expected a regular expression of at most 1000 characters, found 100000",
    "--ranks 2 --remat scope:(((a{255}){255}){255}){255}":
        "fsdp-plan: error: expected repetitions in a regular expression that multiply to at most 1000, "
        "found '(((a{255}){255}){255}){255}'",
    "--ranks 2 --strategy zero9":
        "fsdp-plan: error: --strategy: expected one of full_shard, shard_grad_op, no_shard, hybrid_shard, hybrid_shard_zero2; found 'zero9'",
    "--ranks 2 --backward-prefetch early":
        "fsdp-plan: error: --backward-prefetch: expected one of backward_pre, backward_post, none; found 'early'",
    "--ranks 2 --chunk-loss 0": "fsdp-plan: error: --chunk-loss: expected a number of at least 1, or auto; found '0'",
    "--ranks 2 --forward-prefetch -1":
        "fsdp-plan: error: --forward-prefetch: expected a number of at least 0; found '-1'",
    "--ranks 2 --limit-all-gathers -2": "fsdp-plan: error: --limit-all-gathers: expected a number of at least 0; found '-2'",
    "--ranks 2 --bucket 2":
        "fsdp-plan: error: --bucket: expected none, units:N or bytes:SIZE, with merge: in front to join units, or copy: "
        f"to copy them into one buffer; SIZE is {SIZE}; found '2'",
    "--ranks 2 --bucket merge:bytes:-1":
        "fsdp-plan: error: --bucket: expected none, units:N or bytes:SIZE, with merge: in front to join units, or copy: "
        f"to copy them into one buffer; SIZE is {SIZE}; found 'merge:bytes:-1'",
    "--ranks 2 --bucket copy:2":
        "fsdp-plan: error: --bucket: expected none, units:N or bytes:SIZE, with merge: in front to join units, or copy: "
        f"to copy them into one buffer; SIZE is {SIZE}; found 'copy:2'",
    "--ranks 2 --offload gradients": f"fsdp-plan: error: --offload: expected {OFFLOAD}; found 'gradients'",
    "--ranks 2 --offload bytes=0": f"fsdp-plan: error: --offload: expected {OFFLOAD}; found 'bytes=0'",
    "--ranks 2 --offload optimizer --optimizer none":
        "fsdp-plan: error: --offload: expected --optimizer adamw or sgd, whose states are offloaded; found 'none'",
    "--ranks 2 --reshard-after-forward maybe": "fsdp-plan: error: --reshard-after-forward: expected true, false, auto or a number of ranks; found 'maybe'",
    "--ranks 4 --reshard-after-forward 3":
        "fsdp-plan: error: --reshard-after-forward: expected a number of ranks that divides the 4 of --ranks; found '3'",
    "--ranks 2 --reshard-after-forward true --strategy no_shard":
        "fsdp-plan: error: --reshard-after-forward: --strategy 'no_shard' already says what is freed; give one of the two",
    "--ranks 2 --remat scope:nosuch": NO_MODULES,
    "--ranks 2 --remat budget:16": NO_MODULES,
    "--ranks 2 --remat h.0": f"fsdp-plan: error: --remat: expected none, scope:REGEX, cheap:REGEX or budget:SIZE, which is {SIZE}; found 'h.0'",
    "--ranks 2 --remat budget:-4":
        f"fsdp-plan: error: --remat: expected none, scope:REGEX, cheap:REGEX or budget:SIZE, which is {SIZE}; found 'budget:-4'",
    "--ranks 2 --budget=": f"fsdp-plan: error: --budget: expected {SIZE}; found ''",
    "--ranks 2 --budget 0": f"fsdp-plan: error: --budget: expected {SIZE}; found '0'",
    "--ranks 2 --storage-dtype i64":
        "fsdp-plan: error: --storage-dtype: expected one of unchanged, f16, bf16, f32, f64; found 'i64'",
    "--ranks 2 --momentum":
        "fsdp-plan: error: --momentum: expected --optimizer sgd, which has a momentum; found 'adamw'",
    "--ranks 2 --clip-grad-norm 1:0.5": "fsdp-plan: error: --clip-grad-norm: expected 1, 2 or inf as the order of the norm; found '1:0.5'",
    "--ranks 2 --clip-grad-norm 1:": "fsdp-plan: error: --clip-grad-norm: expected 1, 2 or inf as the order of the norm; found '1:'",
    "--ranks 2 --clip-grad-norm 0": f"fsdp-plan: error: --clip-grad-norm: expected {CLIP}; found '0'",
    "--ranks 2 --clip-grad-norm inf": f"fsdp-plan: error: --clip-grad-norm: expected {CLIP}; found 'inf'",
    "--ranks 2 --clip-grad-norm nan:2": f"fsdp-plan: error: --clip-grad-norm: expected {CLIP}; found 'nan:2'",
    "--ranks 2 --clip-grad-norm=": f"fsdp-plan: error: --clip-grad-norm: expected {CLIP}; found ''",
    "--ranks 2 --clip-grad-norm 1 --optimizer none":
        "fsdp-plan: error: --clip-grad-norm: expected --optimizer adamw or sgd, whose updates take gradients that are clipped; found 'none'",
    "--ranks 2 --no-decay nosuch":
        "fsdp-plan: error: no-decay: expected 'nosuch' to match a parameter that trains, found none; there are 'weight'",
    "--ranks 2 --no-decay (":
        "fsdp-plan: error: no-decay: expected a regular expression, found '(': parentheses not balanced",
    "--ranks 2 --no-decay=":
        f"fsdp-plan: error: --no-decay: expected {NO_DECAY}; found ''",
    "--ranks 2 --no-decay dims<0":
        f"fsdp-plan: error: --no-decay: expected {NO_DECAY}; found 'dims<0'",
    "--ranks 2 --no-decay dims<2|":
        f"fsdp-plan: error: --no-decay: expected {NO_DECAY}; found 'dims<2|'",
    "--ranks 2 --no-decay bias --optimizer none":
        "fsdp-plan: error: --no-decay: expected --optimizer adamw or sgd, which decay weights; found 'none'",
    "--ranks 2 --schedule fsdp3":
        "fsdp-plan: error: --schedule: expected one of none, fsdp1, fsdp2, manual-block, inductor, list; found 'fsdp3'",
    "--ranks 2 --schedule fsdp1 --limit-all-gathers 3":
        "fsdp-plan: error: --schedule: 'fsdp1' already says what --limit-all-gathers is; give one of the two",
    "--ranks 2 --optimizer lion": "fsdp-plan: error: --optimizer: expected one of adamw, sgd, none; found 'lion'",
    "--ranks 2 --device tpu": "fsdp-plan: error: --device: expected one of cpu, cuda; found 'tpu'",
    "": "fsdp-plan: error: expected --ranks N; see --help",
}


@pytest.mark.covers(
    "_PrefetchMode", "an invalid prefetch mode", "a reshard group that does not divide the world size", "Determine", "Handling")
@pytest.mark.parametrize("arguments", USAGE)
def test_plan_rejects_bad_usage(arguments, tmp_path):
    assert rejection("fsdp-plan", TINY, "-o", tmp_path / "p.plan", *arguments.split()) == USAGE[arguments] + "\n"
    assert not list(tmp_path.iterdir())


# A misspelt option must not be taken for one that has no effect.
def test_plan_rejects_unknown_options(tmp_path):
    for option in "--fast", "--hxyz", "-hxyz", "--hardwares", "--limit", "--prefetch=none":
        errors = rejection("fsdp-plan", TINY, "--ranks", 2, "-o", tmp_path / "p.plan", option)
        hint = {"--limit": "did you mean --limit-all-gathers?", "--hardwares": "did you mean --hardware?"}.get(option, "see --help")
        assert errors == f"fsdp-plan: error: there is no option --{option.lstrip('-').split('=')[0]}; {hint}\n"
        assert not list(tmp_path.iterdir())
    for name in "fsdp-opt", "fsdp-translate":
        assert rejection(name, "--hxyz") == f"{name}: error: there is no option --hxyz; see --help\n"


# A step is thousands of operations, and its function has all parameters: neither belongs into an error.
@pytest.mark.covers("Expects")
@pytest.mark.parametrize("passes", ["--lower-to-plan", "--fsdp-verify-logical", "--fsdp-pipeline=ranks=2 --fsdp-async"])
def test_passes_in_the_wrong_order_are_one_sentence(passes, tmp_path):
    succeed("fsdp-translate", "--import-pt2", FIXTURES / "gpt2.pt2", "-o", tmp_path / "gpt2.mlir")
    errors = rejection("fsdp-opt", tmp_path / "gpt2.mlir", *passes.split())
    assert re.fullmatch(r"\S+/gpt2\.mlir:\d+:\d+: error: .{1,200}\n", errors)


# A bug report starts with this.
@pytest.mark.parametrize("name", ["fsdp-plan", "fsdp-opt", "fsdp-translate"])
def test_tools_have_a_version(name):
    assert re.fullmatch(rf"{name} \d+\.\d+\.\d+, LLVM 22\.\S+\n", succeed(name, "--version").stdout)


# Names are read in any case, and sizes with units.
def test_spellings(tmp_path):
    def plan(*arguments):
        succeed("fsdp-plan", TINY, "--ranks", 2, "-o", tmp_path / "p.plan", *arguments)
        return (tmp_path / "p.plan").read_bytes()

    assert plan("--strategy", "SHARD_GRAD_OP", "--storage-dtype", "F64", "--budget", "0.5 GiB", "--bucket", "bytes:1.5KiB") == plan(
        "--strategy", "shard_grad_op", "--storage-dtype", "f64", "--bucket", "bytes:1536")


# What is missing is said at once.
def test_plan_needs_a_model_and_ranks():
    assert rejection("fsdp-plan") == "fsdp-plan: error: expected a model (model.pt2), --ranks N; see --help\n"
    assert rejection("fsdp-plan", "--ranks", 2) == "fsdp-plan: error: expected a model (model.pt2); see --help\n"


# Where the plan cannot be written, the sentence names the place.
def test_plan_rejects_outputs_that_cannot_be_written(tmp_path):
    missing = tmp_path / "missing" / "p.plan"
    assert rejection("fsdp-plan", TINY, "--ranks", 2, "-o", missing) == (
        f"fsdp-plan: error: {missing}: cannot create the file: No such file or directory\n")
    assert rejection("fsdp-plan", TINY, "--ranks", 2, "-o", tmp_path) == (
        f"fsdp-plan: error: {tmp_path}: cannot write the file: Is a directory\n")
    assert not list(tmp_path.iterdir())


SIZES = {
    "": "fsdp-plan: error: expected sizes that are bound, as by --bind hint or --bind NAME=SIZE; got 'tensor<?x?xi64>' (at 'in_0')",
    "--bind batch=3": "fsdp-plan: error: expected sizes that are bound, as by --bind hint or --bind NAME=SIZE; got 'tensor<3x?xi64>' (at 'in_0')",
    "--bind s1=3": "fsdp-plan: error: {graph}: range_constraints: --bind: there is no symbol 's1'; there are batch, length",
}


# A plan has fixed sizes: whoever leaves one open must say what it is.
@pytest.mark.parametrize("arguments", SIZES)
def test_plan_rejects_open_sizes(arguments, tmp_path):
    graph = FIXTURES / "role_dynamic.pt2"
    errors = rejection("fsdp-plan", graph, "--ranks", 2, "-o", tmp_path / "p.plan", *arguments.split())
    assert errors == SIZES[arguments].format(graph=graph) + "\n"
    assert not list(tmp_path.iterdir())


# An archive of another kind is rejected for what it is, by all paths to it.
def test_plan_rejects_what_is_no_archive(tmp_path):
    output = tmp_path / "p.plan"
    weights = FIXTURES / "gpt2_ref.safetensors"
    assert rejection("fsdp-plan", weights, "--ranks", 2, "-o", output) == (
        f"fsdp-plan: error: {weights}: zip: expected a zip file, found an error: Not a zip archive\n")
    assert rejection("fsdp-plan", FIXTURES, "--ranks", 2, "-o", output) == (
        f"fsdp-plan: error: {FIXTURES}: expected a regular file, found a directory\n")
    assert rejection("fsdp-plan", FIXTURES / "none.pt2", "--ranks", 2, "-o", output) == (
        f"fsdp-plan: error: {FIXTURES / 'none.pt2'}: cannot open: No such file or directory\n")
    assert not list(tmp_path.iterdir())


# Weights of another model have none of the names.
@pytest.mark.covers("a buffer that is not known")
def test_run_rejects_weights_of_another_model(plans, references):
    other = FIXTURES / "llama.pt2"
    sentence = rejection("fsdp-run", plans("gpt2", 2), "--weights", other, "--reference", references("gpt2", 2))
    assert sentence.startswith(f"error: {other}: expected a value for each of 28 parameters and buffers, found none for 27: "
                               "m.transformer.wpe.weight, m.transformer.ln_f.weight, m.transformer.ln_f.bias, ")
    assert sentence.split("; unused there")[0].count(", ") == 27  # all of them, and the one of the sentence


TOKENS = {
    "odd": (bytes(129), "expected tokens of 16 bits, found 129 bytes"),
    "empty": (b"", "expected at least one byte, found an empty file"),
    "missing": (None, "cannot open: No such file or directory"),
    "vocabulary": (struct.pack("<64H", *[5] * 40, 128, *[3] * 23),
                   "expected tokens below 128, found 128 at place 8 of batch 1"),
}


# Tokens come from outside: all of them are looked at before the first step.
@pytest.mark.parametrize("case", TOKENS)
def test_run_rejects_bad_tokens(case, plans, tmp_path):
    content, sentence = TOKENS[case]
    path = tmp_path / "tokens.bin"
    if content is not None:
        path.write_bytes(content)
    assert rejection("fsdp-run", plans("gpt2", 2), "--weights", FIXTURES / "gpt2.pt2", "--data", path, "--steps", 1) == (
        f"error: {path}: {sentence}\n")


def load(library, plans, references):
    graph = "role_custom_op"
    return rejection("fsdp-run", plans(graph, 3), "--weights", FIXTURES / f"{graph}.pt2",
                   "--reference", references(graph, 3), *(["--load", library] if library else []))


# The sentence says what to do.
def test_run_rejects_custom_operators_without_their_library(plans, references):
    assert load(None, plans, references) == (
        "error: program step, command 15: operator fsdp_test::scaled_square is not known here; "
        "if a library registers it, name the library with --load\n")


LIBRARIES = {
    "missing": (None, "cannot load the library: cannot open shared object file: No such file or directory"),
    "text": (b"int main() { return 0; }\n", "cannot load the library: file too short"),
    "long text": (b"int main() { return 0; }\n" * 100, "cannot load the library: invalid ELF header"),
    "empty": (b"", "cannot load the library: file too short"),
}


@pytest.mark.covers("a backend that is absent")
@pytest.mark.parametrize("case", LIBRARIES)
def test_run_rejects_what_is_no_library(case, plans, references, tmp_path):
    content, sentence = LIBRARIES[case]
    path = tmp_path / "library.so"
    if content is not None:
        path.write_bytes(content)
    assert load(path, plans, references) == f"error: {path}: {sentence}\n"


def test_run_rejects_a_folder_as_library(plans, references, tmp_path):
    assert load(tmp_path, plans, references) == (
        f"error: {tmp_path}: cannot load the library: cannot read file data: Is a directory\n")


@pytest.fixture(scope="module")
def make_library(tmp_path_factory):
    """make_library(name, source): path of a shared library."""
    folder = tmp_path_factory.mktemp("libraries")

    def make(name, source):
        (folder / f"{name}.c").write_text(source)
        path = folder / f"{name}.so"
        subprocess.run(["gcc", "-shared", "-fPIC", folder / f"{name}.c", "-o", path], check=True)
        return path

    return make


# The system's loader maps what the headers promise and dies where the file ends.
@pytest.mark.parametrize("part", [0.1, 0.5, 0.7])
def test_run_rejects_a_truncated_library(part, make_library, plans, references, tmp_path):
    whole = make_library("whole", "int f(void) { return 1; }\n").read_bytes()
    path = tmp_path / "library.so"
    path.write_bytes(whole[: int(len(whole) * part)])
    assert load(path, plans, references) == f"error: {path}: cannot load the library: the file is truncated\n"


# Otherwise the next sentence would ask for --load, which was given.
def test_run_rejects_a_library_without_operators(make_library, plans, references):
    path = make_library("foreign", "int f(void) { return 1; }\n")
    assert load(path, plans, references) == (
        f"error: {path}: expected a library that registers new operators, found none in it\n")


def test_run_rejects_a_library_that_needs_another(make_library, plans, references):
    path = make_library("needy", "int nowhere(void);\nint f(void) { return nowhere(); }\n")
    assert load(path, plans, references) == f"error: {path}: cannot load the library: undefined symbol: nowhere\n"


@pytest.fixture(scope="module")
def text(plans, tmp_path_factory):
    """The plan of role_tiny for 3 ranks as text."""
    path = tmp_path_factory.mktemp("text") / "p.mlir"
    succeed("fsdp-translate", "--import-plan", plans("role_tiny", 3), "-o", path)
    return path.read_text()


class Hash(ctypes.Structure):
    """XXH128_hash_t."""

    _fields_ = [("low", ctypes.c_uint64), ("high", ctypes.c_uint64)]


def seal(content):
    """A plan file with this content: what an attacker, or another version, would write."""
    xxh3 = ctypes.CDLL("libxxhash.so.0").XXH3_128bits
    xxh3.restype, xxh3.argtypes = Hash, [ctypes.c_char_p, ctypes.c_size_t]
    found = xxh3(content, len(content))
    return content + found.high.to_bytes(8, "big") + found.low.to_bytes(8, "big")


# The runtime does not read the strategy; the compiler has a name for each.
def test_an_unknown_strategy_is_rejected_at_import(plans, tmp_path):
    content = plans("role_tiny", 3).read_bytes()[:-16]
    assert content.count(b"full_shard") == 1
    (tmp_path / "other.plan").write_bytes(seal(content.replace(b"full_shard", b"full_shark")))
    result = tool("fsdp-translate", "--import-plan", tmp_path / "other.plan")
    assert result.returncode == 1, result.stdout
    assert "error: strategy: expected one of full_shard, shard_grad_op, no_shard, hybrid_shard and hybrid_shard_zero2, found 'full_shark'" in result.stderr


def edit(pattern, replacement):
    def apply(text):
        changed, count = re.subn(pattern, replacement, text)
        assert count == 1, f"{pattern} stands {count} times in the plan"
        return changed

    return apply


TEXTS = {
    "empty": (lambda text: "", "expected one plan.module to export, found 0"),
    "foreign": (lambda text: '{"plan": 1}\n', "expected operation name in quotes"),
    "binary": (lambda text: "\x01\x02\x7f", "unexpected character"),
    "truncated": (lambda text: text[: text.index("plan.all_gather") + 8], "custom op 'plan.all' is unknown"),
    "no plan": (lambda text: "func.func @f() attributes {aten.program} { return }\n", "expected one plan.module to export, found 0"),
    "two plans": (lambda text: text[:-2] + text[text.index("  plan.module"):].replace("@plan", "@other"),
                  "expected one plan.module to export, found 2"),
    "another dialect": (edit(r"plan\.all_gather", "mpi.all_gather"), "Dialect `mpi' not found for custom op 'mpi.all_gather'"),
    "unknown command": (edit(r"plan\.all_gather", "plan.all_scatter"), "custom op 'plan.all_scatter' is unknown"),
    "no place": (edit(r"loss @step at \d+", "loss @step"),
                 "'plan.buffer' op expected a place in the arena: run 'plan-assign-memory' first"),
    "view outside": (edit(r"(plan\.view %\d+ at 0 : tensor<)3xf32>", r"\g<1>4xf32>"),
                     "'plan.view' op C3: expected a window inside of 12 bytes, got [0, 16)"),
    "shard too long": (edit(r"(buffer shard @root at \d+ : tensor<)1xf32>", r"\g<1>2xf32>"),
                       "'plan.all_gather' op C2: expected 6 elements, got 3"),
    "unknown attribute": (edit(r"<pre = 2, post = 1\.5>", "<pre = 2, past = 1.5>"),
                          "custom op 'plan.reduce_scatter' expected 'post'"),
    "unknown value": (edit(r"(plan\.all_gather @shard_gather) %\d+ to", r"\1 %99 to"), "use of undeclared SSA value name"),
    "misaligned": (edit(r"buffer loss @step at \d+", "buffer loss @step at 322"),
                   "plan: buffers[18]: expected an offset that is a multiple of 64, found 322"),
    "unknown operator": (edit(r'"mse_loss"', '"mse_lass"'),
                         "plan: operators[3] (aten::mse_lass): expected an operator that a plan may run, "
                         "found an unknown one"),
    "random operator": (edit(r'"mse_loss"\(%\d+, %\d+, 1\)', '"rand_like"(%1)'),
                        "plan: operators[3] (aten::rand_like): expected an operator that a plan may run, "
                        "found one that no plan may"),
    "unknown attribute of the plan": (edit("strategy full_shard", 'strategy full_shard attributes {color = "red"}'),
                                      "'plan.module' op expected only attributes that the plan file has, found 'color'"),
    "nothing to run": (edit("plan.program @step", "plan.program @step init"), "'plan.module' op expected a program to run, found none"),
    "no such program": (edit("plan.program @step", "plan.program @steps"), "'plan.buffer' op C2: no program is called 'step'"),
    "unknown device": (edit("device cpu", "device tpu"), "custom op 'plan.module' expected one of [cpu, cuda] for a type of device, got: tpu"),
}


# Text that people have edited becomes a plan that can run, or nothing.
@pytest.mark.parametrize("case", TEXTS)
def test_export_rejects_bad_text(case, text, tmp_path):
    change, sentence = TEXTS[case]
    source, output = tmp_path / "p.mlir", tmp_path / "p.plan"
    source.write_text(change(text))
    first = rejection("fsdp-translate", "--export-plan", source, "-o", output).splitlines()[0]
    assert first.startswith(f"{source}:"), first
    assert first.split(" error: ", 1)[1].split("  (tried")[0].rstrip() == sentence, first
    assert not output.exists()


# The same for files that are not there or are no files.
def test_export_rejects_missing_text(tmp_path):
    assert rejection("fsdp-translate", "--export-plan", tmp_path / "p.mlir", "-o", tmp_path / "p.plan") == (
        f"fsdp-translate: error: {tmp_path / 'p.mlir'}: cannot open: No such file or directory\n")
    assert not list(tmp_path.iterdir())


# As on a machine where there was no MPI library when the project was built.
def test_a_backend_that_was_not_built_is_named(tmp_path):
    (tmp_path / "bin").mkdir()
    program = shutil.copy(BUILD / "bin" / "fsdp-run", tmp_path / "bin")
    result = subprocess.run([program, "step.plan", "--backend", "mpi"], capture_output=True, text=True)
    assert (result.returncode, result.stdout, result.stderr) == (
        1, "", f"error: --backend mpi: expected {tmp_path}/lib/libfsdp_mpi.so, which is built where CMake finds an MPI library, found none\n")
