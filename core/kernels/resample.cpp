// SPDX-License-Identifier: Apache-2.0
// The taps of each resampling mode. Positions are computed in f32, because ATen does so and a
// nearest neighbour depends on the last bit.
#include "kernels/resample.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace tessera::kernels {

void AxisMap::add(int64_t from, float w) {
  for (size_t t = begin.back(); t < index.size(); ++t)
    if (index[t] == from) {
      weight[t] += w;
      return;
    }
  index.push_back(static_cast<int32_t>(from));
  weight.push_back(w);
}

bool AxisMap::picks() const {
  for (int64_t o = 0; o < out; ++o)
    if (begin[o + 1] - begin[o] != 1 || weight[begin[o]] != 1.0f) return false;
  return true;
}

AxisMap transposed(const AxisMap& a) {
  AxisMap t;
  t.in = a.out, t.out = a.in;
  t.begin.assign(a.in + 1, 0);
  t.index.resize(a.index.size());
  t.weight.resize(a.index.size());
  for (int32_t i : a.index) ++t.begin[i + 1];
  for (int64_t i = 0; i < a.in; ++i) t.begin[i + 1] += t.begin[i];
  std::vector<int32_t> at(t.begin.begin(), t.begin.end() - 1);
  for (int32_t o = 0; o < a.out; ++o)
    for (int32_t k = a.begin[o]; k < a.begin[o + 1]; ++k) {
      const int32_t to = at[a.index[k]]++;
      t.index[to] = o;
      t.weight[to] = a.weight[k];
    }
  return t;
}

MapMode map_mode(std::string_view text) {
  constexpr std::string_view names[] = {"nearest", "nearest-exact", "linear",
                                        "cubic",   "linear-aa",     "cubic-aa",
                                        "reflect", "replicate",     "circular"};
  for (size_t i = 0; i < std::size(names); ++i)
    if (names[i] == text) return static_cast<MapMode>(i);
  throw UserError(fmt::format("[resample] no mode \"{}\"", text));
}

namespace {

bool is_padding(MapMode mode) {
  return mode >= MapMode::kReflect;
}

// Inputs per output.
float step_of(int64_t in, int64_t out, bool align_corners, double factor) {
  if (align_corners)
    return out > 1 ? static_cast<float>(in - 1) / static_cast<float>(out - 1) : 0.0f;
  if (factor > 0) return static_cast<float>(1.0 / factor);
  return static_cast<float>(in) / static_cast<float>(out);
}

// Keys' cubic kernel with its free parameter a, for 0 <= x < 2.
float cubic(float x, float a) {
  if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a;
}

int64_t nearest(MapMode mode, int64_t o, int64_t in, int64_t out, float step, bool gradient) {
  if (mode == MapMode::kNearest && gradient) {
    if (in == out) return o;
    if (out == 2 * in) return o >> 1;
  }
  const float shift = mode == MapMode::kNearestExact ? 0.5f : 0.0f;
  const float at = std::floor((static_cast<float>(o) + shift) * step);
  return std::min(static_cast<int64_t>(at), in - 1);
}

void add_linear(AxisMap& m, float at) {
  const int64_t i = std::min(static_cast<int64_t>(at), m.in - 1);
  const float high = std::clamp(at - static_cast<float>(i), 0.0f, 1.0f);
  m.add(i, 1.0f - high);
  m.add(std::min(i + 1, m.in - 1), high);
}

void add_cubic(AxisMap& m, float at) {
  const float floor = std::floor(at);
  const float t = std::clamp(at - floor, 0.0f, 1.0f);
  const float distance[] = {t + 1, t, 1 - t, 2 - t};
  for (int k = 0; k < 4; ++k)
    m.add(std::clamp<int64_t>(static_cast<int64_t>(floor) - 1 + k, 0, m.in - 1),
          cubic(distance[k], -0.75f));
}

// A filter as wide as the inputs of one output, so that shrinking looks at all of them.
void add_smooth(AxisMap& m, MapMode mode, int64_t o, float step) {
  const bool linear = mode == MapMode::kSmoothLinear;
  const float stretch = std::max(step, 1.0f), reach = (linear ? 1.0f : 2.0f) * stretch;
  const float center = step * (static_cast<float>(o) + 0.5f);
  const int64_t first = std::max<int64_t>(static_cast<int64_t>(center - reach + 0.5f), 0);
  const int64_t last = std::min(static_cast<int64_t>(center + reach + 0.5f), m.in);
  std::vector<float> weights;
  float total = 0;
  for (int64_t i = first; i < last; ++i) {
    const float x = std::abs((static_cast<float>(i) - center + 0.5f) * (1.0f / stretch));
    weights.push_back(x >= (linear ? 1.0f : 2.0f) ? 0.0f : linear ? 1 - x : cubic(x, -0.5f));
    total += weights.back();
  }
  for (int64_t i = first; i < last; ++i)
    m.add(i, total != 0 ? weights[i - first] / total : weights[i - first]);
}

int64_t padded_source(MapMode mode, int64_t at, int64_t in) {
  if (mode == MapMode::kReplicate) return std::clamp<int64_t>(at, 0, in - 1);
  if (mode == MapMode::kCircular) return (at % in + in) % in;
  if (at < 0) return -at;
  return at < in ? at : 2 * (in - 1) - at;
}

}  // namespace

AxisMap axis_map(MapMode mode, int64_t in, int64_t out, bool align_corners, double number,
                 bool gradient) {
  AxisMap m;
  m.in = in, m.out = out;
  const float step = is_padding(mode) ? 1.0f : step_of(in, out, align_corners, number);
  for (int64_t o = 0; o < out; ++o, m.next()) {
    const float at =
        align_corners ? step * static_cast<float>(o) : step * (static_cast<float>(o) + 0.5f) - 0.5f;
    switch (mode) {
      case MapMode::kNearest:
      case MapMode::kNearestExact:
        m.add(nearest(mode, o, in, out, step, gradient), 1.0f);
        break;
      case MapMode::kLinear:
        if (in == out)
          m.add(o, 1.0f);
        else
          add_linear(m, std::max(at, 0.0f));
        break;
      case MapMode::kCubic:
        add_cubic(m, at);
        break;
      case MapMode::kSmoothLinear:
      case MapMode::kSmoothCubic:
        add_smooth(m, mode, o, step);
        break;
      default: {
        const int64_t from = padded_source(mode, o - static_cast<int64_t>(number), in);
        user_check(from >= 0 && from < in, "[resample] a padding is larger than the image");
        m.add(from, 1.0f);
      }
    }
  }
  return m;
}

RowPlan row_plan(const AxisMap& a) {
  constexpr int64_t kBlock = 16;
  // Copies below this length are cheaper as part of a block.
  constexpr int64_t kShortCopy = 48;
  RowPlan plan;
  plan.in = a.in, plan.out = a.out;
  auto picks = [&](int64_t o) {
    return a.begin[o + 1] - a.begin[o] == 1 && a.weight[a.begin[o]] == 1.0f;
  };
  auto copy_length = [&](int64_t o) {
    int64_t n = 0;
    while (o + n < a.out && picks(o + n) && a.index[a.begin[o + n]] == a.index[a.begin[o]] + n) ++n;
    return n;
  };
  // A block that reads from both ends of the row would have to gather.
  auto jumps = [&](int64_t o) {
    return picks(o - 1) && picks(o) &&
           std::abs(a.index[a.begin[o]] - a.index[a.begin[o - 1]]) >= kBlock;
  };
  for (int64_t o = 0; o < a.out;) {
    RowPiece p;
    p.first = static_cast<int32_t>(o);
    if (const int64_t n = copy_length(o); n >= kShortCopy) {
      p.count = static_cast<int32_t>(n);
      p.from = a.index[a.begin[o]];
      plan.pieces.push_back(p);
      o += n;
      continue;
    }
    int64_t end = o + 1;
    while (end < a.out && end - o < kBlock && copy_length(end) < kShortCopy && !jumps(end)) ++end;
    p.count = static_cast<int32_t>(end - o);
    p.tap = static_cast<int32_t>(plan.taps.size());
    for (int32_t t = 0;; ++t) {
      RowTap tap;
      int32_t low = 0, high = -1;
      tap.ones = true;
      for (int64_t l = 0; l < end - o; ++l) {
        if (a.begin[o + l] + t >= a.begin[o + l + 1]) continue;
        const int32_t at = a.begin[o + l] + t;
        tap.index[l] = a.index[at];
        tap.weight[l] = a.weight[at];
        if (a.weight[at] != 1.0f) tap.ones = false;
        low = tap.lanes ? std::min(low, a.index[at]) : a.index[at];
        high = std::max(high, a.index[at]);
        tap.lanes = static_cast<uint16_t>(tap.lanes | (1u << l));
      }
      if (!tap.lanes) break;
      tap.base = low;
      tap.reach = high + 1 - low;
      tap.whole = low + kBlock <= a.in;
      for (int l = 0; l < 16; ++l) tap.index[l] = tap.lanes >> l & 1 ? tap.index[l] - low : 0;
      plan.taps.push_back(tap);
      ++p.taps;
    }
    // Outputs that nothing reaches are zero: a block of a tap without lanes.
    if (p.taps == 0) {
      plan.taps.push_back({});
      p.taps = 1;
    }
    plan.pieces.push_back(p);
    o = end;
  }
  return plan;
}

}  // namespace tessera::kernels
