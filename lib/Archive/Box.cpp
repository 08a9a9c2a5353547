//===- Box.cpp - A part of a tensor ---------------------------------------===//

#include "fsdp/Archive/Box.h"

#include <numeric>

using namespace fsdp::archive;

/// Sorts boxes along an axis, and calls `add(begin, end)` for each run of them
/// in which each begins before all ahead of it have ended.
template <typename Add>
static void splitAlong(size_t axis, const Box **begin, const Box **end,
                       const Add &add) {
  auto getEnd = [&](const Box *box) {
    return box->offsets[axis] + box->sizes[axis];
  };
  std::sort(begin, end, [&](const Box *left, const Box *right) {
    return left->offsets[axis] < right->offsets[axis];
  });
  while (begin != end) {
    const Box **run = begin;
    int64_t last = getEnd(*run);
    for (++run; run != end && (*run)->offsets[axis] < last; ++run)
      last = std::max(last, getEnd(*run));
    add(begin, run);
    begin = run;
  }
}

bool fsdp::archive::areDisjoint(std::vector<const Box *> boxes) {
  boxes.erase(std::remove_if(boxes.begin(), boxes.end(),
                             [](const Box *box) { return box->numel() == 0; }),
              boxes.end());
  if (boxes.empty())
    return true;
  size_t numAxes = boxes[0]->sizes.size();
  /// Boxes, and how many axes in a row have not split them.
  struct Group {
    const Box **begin, **end;
    size_t axis, tried;
  };
  std::vector<Group> groups = {
      {boxes.data(), boxes.data() + boxes.size(), 0, 0}};
  while (!groups.empty()) {
    Group group = groups.back();
    groups.pop_back();
    if (group.end - group.begin < 2)
      continue;
    if (group.tried == numAxes) {
      // No plane separates any of them, as in a pinwheel: one by one.
      for (const Box **left = group.begin; left != group.end; ++left)
        for (const Box **right = left + 1; right != group.end; ++right)
          if (intersect(**left, **right))
            return false;
      continue;
    }
    splitAlong(group.axis, group.begin, group.end,
               [&](const Box **begin, const Box **end) {
                 bool isWhole = begin == group.begin && end == group.end;
                 groups.push_back({begin, end, (group.axis + 1) % numAxes,
                                   isWhole ? group.tried + 1 : 0});
               });
  }
  return true;
}

std::vector<int64_t> fsdp::archive::rowMajor(size_t axes) {
  std::vector<int64_t> order(axes);
  std::iota(order.begin(), order.end(), 0);
  return order;
}

std::vector<Box> fsdp::archive::cut(const std::vector<int64_t> &shape,
                                    const std::vector<int64_t> &order,
                                    int64_t begin, int64_t end) {
  auto axisOf = [&](size_t place) { return static_cast<size_t>(order[place]); };
  std::vector<Box> boxes;
  while (begin < end) {
    // Whole rows from `place` on: the slowest one with a row that begins here.
    size_t place = shape.size();
    int64_t row = 1, next = 1;
    while (place > 0 && begin % next == 0 && begin + next <= end) {
      row = next;
      next *= shape[axisOf(--place)];
    }
    Box box = Box::whole(shape);
    int64_t rest = begin;
    for (size_t p = shape.size(); p-- > 0; rest /= shape[axisOf(p)]) {
      box.offsets[axisOf(p)] = rest % shape[axisOf(p)];
      if (p < place)
        box.sizes[axisOf(p)] = 1;
    }
    int64_t rows = 1;
    if (place != shape.size()) {
      size_t axis = axisOf(place);
      rows = box.sizes[axis] =
          std::min(shape[axis] - box.offsets[axis], (end - begin) / row);
    }
    boxes.push_back(std::move(box));
    begin += rows * row;
  }
  return boxes;
}
