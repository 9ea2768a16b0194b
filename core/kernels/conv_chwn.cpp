// SPDX-License-Identifier: Apache-2.0
// Planning of the CHWN convolution: which pixels share a register tile, which taps each
// sees, and how tiles are dealt out to threads.
#include "kernels/conv_chwn.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <tuple>

namespace tessera::kernels {

namespace {

// Tiles walked with one block of channels before the next: their inputs stay in the first-level
// cache while all result channels are computed from them.
constexpr int64_t kTilesPerBlock = 16;

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

// Cuts `n` items into the fewest runs of at most `most`, all nearly equal.
template <typename F>
void balanced_runs(int64_t n, int64_t most, F f) {
  const int64_t runs = ceil_div(n, most);
  for (int64_t i = 0; i < runs; ++i) f(n * i / runs, n * (i + 1) / runs);
}

std::vector<ChannelBlock> channel_blocks(int64_t groups, int64_t per_group) {
  std::vector<ChannelBlock> blocks;
  for (int64_t g = 0; g < groups; ++g)
    balanced_runs(per_group, kMaxTileChannels, [&](int64_t b, int64_t e) {
      blocks.push_back({g, b, e - b});
    });
  return blocks;
}

int64_t largest(const std::vector<ChannelBlock>& blocks) {
  int64_t most = 1;
  for (const ChannelBlock& b : blocks) most = std::max(most, b.count);
  return most;
}

// Vectors of one pixel that a tile takes: as many as fit, preferring a divisor of what there is.
int64_t vectors_per_pixel(int64_t vectors, int64_t most) {
  if (vectors <= most) return vectors;
  for (int64_t r = most; r > most / 2; --r)
    if (vectors % r == 0) return r;
  return most;
}

}  // namespace

// What one result row (or column) sees: `count` taps from `tap` on, the first at `source`.
struct ConvChwnPlan::Axis {
  int64_t source = 0, tap = 0, count = 0;
};

namespace {

// Fills axis[i] for forward: taps t with 0 <= i * stride - pad + t * dilation < in.
template <typename Axis>
std::vector<Axis> forward_axis(const ConvShape& s, int d) {
  std::vector<Axis> axis(s.out[d]);
  for (int64_t i = 0; i < s.out[d]; ++i) {
    const int64_t start = i * s.stride[d] - s.pad[d];
    Axis a{0, 0, 0};
    for (int64_t t = 0; t < s.kernel[d]; ++t) {
      const int64_t at = start + t * s.dilation[d];
      if (at < 0 || at >= s.in[d]) continue;
      if (a.count++ == 0) a.source = at, a.tap = t;
    }
    axis[i] = a;
  }
  return axis;
}

// For the input gradient: taps whose output pixel exists. They step by stride / gcd.
template <typename Axis>
std::vector<Axis> input_grad_axis(const ConvShape& s, int d) {
  std::vector<Axis> axis(s.in[d]);
  for (int64_t i = 0; i < s.in[d]; ++i) {
    Axis a{0, 0, 0};
    for (int64_t t = 0; t < s.kernel[d]; ++t) {
      const int64_t v = i + s.pad[d] - t * s.dilation[d];
      if (v < 0 || v % s.stride[d] != 0 || v / s.stride[d] >= s.out[d]) continue;
      if (a.count++ == 0) a.source = v / s.stride[d], a.tap = t;
    }
    axis[i] = a;
  }
  return axis;
}

}  // namespace

ConvChwnPlan ConvChwnPlan::forward(const ConvShape& s, const ConvChwnKernels& table) {
  ConvChwnPlan p;
  p.table_ = &table;
  const int64_t taps = s.taps();
  p.walk_ = {.channels = s.group_c(),
             .x_channel = s.in[1] * s.in[2] * s.n,
             .x_row = s.dilation[1] * s.in[2] * s.n,
             .x_col = s.dilation[2] * s.n,
             .w_channel = taps,
             .w_row = s.kernel[2],
             .w_col = 1,
             .w_result = s.group_c() * taps,
             .y_channel = s.out[1] * s.out[2] * s.n};
  p.x_group_ = s.group_c() * p.walk_.x_channel;
  p.w_group_ = s.group_k() * s.group_c() * taps;
  p.y_group_ = s.group_k() * p.walk_.y_channel;
  p.group_results_ = s.group_k();
  p.build(s, forward_axis<Axis>(s, 1), forward_axis<Axis>(s, 2), s.in[2]);
  return p;
}

ConvChwnPlan ConvChwnPlan::input_grad(const ConvShape& s, const ConvChwnKernels& table) {
  ConvChwnPlan p;
  p.table_ = &table;
  const int64_t taps = s.taps();
  const int64_t gh = std::gcd(s.stride[1], s.dilation[1]);
  const int64_t gw = std::gcd(s.stride[2], s.dilation[2]);
  p.walk_ = {.channels = s.group_k(),
             .x_channel = s.out[1] * s.out[2] * s.n,
             .x_row = -s.dilation[1] / gh * s.out[2] * s.n,
             .x_col = -s.dilation[2] / gw * s.n,
             .w_channel = s.group_c() * taps,
             .w_row = s.stride[1] / gh * s.kernel[2],
             .w_col = s.stride[2] / gw,
             .w_result = taps,
             .y_channel = s.in[1] * s.in[2] * s.n};
  p.x_group_ = s.group_k() * p.walk_.x_channel;
  p.w_group_ = s.group_k() * s.group_c() * taps;
  p.y_group_ = s.group_c() * p.walk_.y_channel;
  p.group_results_ = s.group_c();
  p.build(s, input_grad_axis<Axis>(s, 1), input_grad_axis<Axis>(s, 2), s.out[2]);
  return p;
}

void ConvChwnPlan::build(const ConvShape& s, const std::vector<Axis>& rows,
                         const std::vector<Axis>& cols, int64_t x_width) {
  blocks_ = channel_blocks(s.groups, group_results_);
  const int64_t most = table_->max_positions[largest(blocks_)];

  // Pixels by what the border leaves of their window, so that a tile has one loop count.
  struct Pixel {
    int64_t x, y;
  };
  std::map<std::tuple<int64_t, int64_t, int64_t, int64_t>, std::vector<Pixel>> alike;
  const auto width = static_cast<int64_t>(cols.size());
  for (int64_t i = 0; i < static_cast<int64_t>(rows.size()); ++i)
    for (int64_t j = 0; j < width; ++j)
      alike[{rows[i].tap, rows[i].count, cols[j].tap, cols[j].count}].push_back(
          {(rows[i].source * x_width + cols[j].source) * s.n, (i * width + j) * s.n});

  auto add_section = [&](int64_t begin, int64_t vectors, int64_t chunks, int lanes) {
    Section section{begin, vectors * kBatchBlock, chunks, lanes, {}};
    for (const auto& [window, pixels] : alike) {
      const auto [row_tap, row_count, col_tap, col_count] = window;
      balanced_runs(static_cast<int64_t>(pixels.size()), most / vectors, [&](int64_t b, int64_t e) {
        ConvTile t;
        t.rows = static_cast<int32_t>(row_count);
        t.cols = static_cast<int32_t>(col_count);
        t.first_weight = row_tap * s.kernel[2] + col_tap;
        for (int64_t i = b; i < e; ++i)
          for (int64_t v = 0; v < vectors; ++v, ++t.positions) {
            t.x[t.positions] = pixels[i].x + v * kBatchBlock;
            t.y[t.positions] = pixels[i].y + v * kBatchBlock;
          }
        section.tiles.push_back(t);
      });
    }
    units_ += chunks * static_cast<int64_t>(section.tiles.size() * blocks_.size());
    sections_.push_back(std::move(section));
  };
  const int64_t vectors = s.n / kBatchBlock, each = vectors_per_pixel(vectors, most);
  if (vectors > 0) {
    add_section(0, each, vectors / each, kBatchBlock);
    if (const int64_t rest = vectors % each; rest > 0)
      add_section((vectors - rest) * kBatchBlock, rest, 1, kBatchBlock);
  }
  if (const int64_t tail = s.n % kBatchBlock; tail > 0)
    add_section(vectors * kBatchBlock, 1, 1, static_cast<int>(tail));
}

void ConvChwnPlan::run(const float* x, const float* w, const float* bias, float* y, int part,
                       int parts) const {
  const int64_t begin = units_ * part / parts, end = units_ * (part + 1) / parts;
  int64_t unit = 0;  // of the first tile of the current run
  for (const Section& section : sections_) {
    const auto count = static_cast<int64_t>(section.tiles.size());
    for (int64_t tile = 0; tile < count; tile += kTilesPerBlock) {
      const int64_t run = std::min(kTilesPerBlock, count - tile);
      for (int64_t chunk = 0; chunk < section.chunks; ++chunk) {
        const int64_t lane = section.begin + chunk * section.step;
        for (const ChannelBlock& b : blocks_) {
          const int64_t from = std::max(begin - unit, int64_t{0}), to = std::min(end - unit, run);
          unit += run;
          if (from >= to) continue;
          table_->tiles(static_cast<int>(b.count), walk_,
                        {section.tiles.data() + tile + from, static_cast<size_t>(to - from)},
                        section.lanes, x + b.group * x_group_ + lane,
                        w + b.group * w_group_ + b.begin * walk_.w_result,
                        bias ? bias + b.group * group_results_ + b.begin : nullptr,
                        y + b.group * y_group_ + b.begin * walk_.y_channel + lane);
        }
      }
    }
  }
}

ConvChwnWeightPlan::ConvChwnWeightPlan(const ConvShape& s, const ConvChwnKernels& table)
    : s_(s), table_(&table), height_(s.in[1]), width_(s.in[2]) {
  if (s.pad[1] > 0 || s.pad[2] > 0) {
    height_ = (s.out[1] - 1) * s.stride[1] + (s.kernel[1] - 1) * s.dilation[1] + 1;
    width_ = (s.out[2] - 1) * s.stride[2] + (s.kernel[2] - 1) * s.dilation[2] + 1;
    padded_floats_ = ceil_div(s.c * height_ * width_ * s.n, kBatchBlock) * kBatchBlock;
  }
  blocks_ = channel_blocks(s.groups, s.group_k());
  const int64_t most = table.max_positions[largest(blocks_)];
  balanced_runs(s.group_c() * s.taps(), most, [&](int64_t b, int64_t e) {
    ConvTaps t;
    t.first_weight = b;
    for (int64_t i = b; i < e; ++i) {
      const int64_t c = i / s.taps(), r = i % s.taps() / s.kernel[2], q = i % s.kernel[2];
      t.x[t.positions++] = ((c * height_ + r * s.dilation[1]) * width_ + q * s.dilation[2]) * s.n;
    }
    taps_.push_back(t);
  });
  area_ = {.rows = s.out[1],
           .cols = s.out[2],
           .vectors = s.n / kBatchBlock,
           .tail = s.n % kBatchBlock,
           .gy_row = s.out[2] * s.n,
           .gy_col = s.n,
           .x_row = s.stride[1] * width_ * s.n,
           .x_col = s.stride[2] * s.n};
  if (s.stride[2] == 1 && area_.tail == 0) {  // a whole row is one run of vectors
    area_.vectors *= area_.cols;
    area_.cols = 1;
  }
  // Few weights: cut the rows too, so that threads share the work evenly.
  constexpr int64_t kEnoughTiles = 8;
  const auto tiles = static_cast<int64_t>(blocks_.size() * taps_.size());
  if (tiles < kEnoughTiles) {
    chunks_ = std::min(ceil_div(kEnoughTiles, tiles), s.out[1]);
    if (chunks_ > 1) partial_floats_ = chunks_ * s.k * s.group_c() * s.taps();
  }
}

void ConvChwnWeightPlan::pad(const float* x, float* scratch, int part, int parts) const {
  const int64_t rows = s_.c * height_, left = std::min(s_.pad[2], width_);
  const int64_t copied = std::max(std::min(s_.in[2], width_ - left), int64_t{0});
  for (int64_t i = rows * part / parts; i < rows * (part + 1) / parts; ++i) {
    float* to = scratch + i * width_ * s_.n;
    const int64_t h = i % height_ - s_.pad[1];
    if (h < 0 || h >= s_.in[1]) {
      std::fill(to, to + width_ * s_.n, 0.0f);
      continue;
    }
    const float* from = x + (i / height_ * s_.in[1] + h) * s_.in[2] * s_.n;
    std::fill(to, to + left * s_.n, 0.0f);
    std::memcpy(to + left * s_.n, from, copied * s_.n * sizeof(float));
    std::fill(to + (left + copied) * s_.n, to + width_ * s_.n, 0.0f);
  }
}

void ConvChwnWeightPlan::sum(const float* gy, const float* x, float* gw, float* scratch, int part,
                             int parts) const {
  const float* image = pads() ? scratch : x;
  const int64_t group_weights = s_.group_c() * s_.taps();
  const int64_t gy_channel = s_.out[1] * s_.out[2] * s_.n;
  const auto tiles = static_cast<int64_t>(blocks_.size() * taps_.size());
  const int64_t begin = chunks_ * tiles * part / parts, end = chunks_ * tiles * (part + 1) / parts;
  for (int64_t unit = begin; unit < end; ++unit) {
    const int64_t chunk = unit / tiles, tile = unit % tiles;
    const ChannelBlock& b = blocks_[tile / static_cast<int64_t>(taps_.size())];
    const ConvTaps& t = taps_[tile % static_cast<int64_t>(taps_.size())];
    ConvArea area = area_;
    const int64_t row = area_.rows * chunk / chunks_;
    area.rows = area_.rows * (chunk + 1) / chunks_ - row;
    const int64_t k = b.group * s_.group_k() + b.begin;
    float* to = splits() ? scratch + padded_floats_ + chunk * s_.k * group_weights : gw;
    table_->weight_tile(static_cast<int>(b.count), t, area, gy_channel,
                        gy + k * gy_channel + row * area.gy_row,
                        image + b.group * s_.group_c() * height_ * width_ * s_.n + row * area.x_row,
                        to + k * group_weights, group_weights);
  }
}

void ConvChwnWeightPlan::combine(const float* scratch, float* gw, int part, int parts) const {
  const int64_t weights = s_.k * s_.group_c() * s_.taps();
  const float* partial = scratch + padded_floats_;
  for (int64_t i = weights * part / parts; i < weights * (part + 1) / parts; ++i) {
    float sum = partial[i];
    for (int64_t c = 1; c < chunks_; ++c) sum += partial[c * weights + i];
    gw[i] = sum;
  }
}

}  // namespace tessera::kernels
