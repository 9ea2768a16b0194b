// SPDX-License-Identifier: Apache-2.0
// Convolution for few channels in memory order CHWN, with the batch in the vector lanes: every
// load, store and multiply is full width whatever the channel count. Forward and input gradient are
// the same walk over taps with different strides; the weight gradient keeps one vector sum per
// weight and adds its lanes up at the end.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/conv_reference.h"
#include "kernels/dispatch.h"

namespace tessera::kernels {

constexpr int kBatchBlock = 16;      // samples in one vector
constexpr int kMaxPositions = 8;     // result vectors per register tile and channel
constexpr int kMaxTileChannels = 6;  // result channels per register tile

// A register tile: result vectors whose windows are clipped alike by the border. Offsets are in
// elements from channel 0 of a tensor.
struct ConvTile {
  int32_t positions = 0;
  int32_t rows = 0, cols = 0;  // taps
  int64_t first_weight = 0;
  int64_t x[kMaxPositions] = {};  // what the first tap of each position reads
  int64_t y[kMaxPositions] = {};
};

// Strides, in elements, of the sum over source channels and taps.
struct ConvWalk {
  int64_t channels = 0;  // summed
  int64_t x_channel = 0, x_row = 0, x_col = 0;
  int64_t w_channel = 0, w_row = 0, w_col = 0;
  int64_t w_result = 0, y_channel = 0;  // from one result channel to the next
};

// Up to kMaxPositions taps of the weight gradient that share the loads of gy.
struct ConvTaps {
  int32_t positions = 0;
  int64_t x[kMaxPositions] = {};
  int64_t first_weight = 0;
};

// The pixels summed by one weight-gradient tile: rows x cols x (vectors + tail lanes).
struct ConvArea {
  int64_t rows = 0, cols = 0, vectors = 0, tail = 0;
  int64_t gy_row = 0, gy_col = 0, x_row = 0, x_col = 0;
};

struct ConvChwnKernels {
  // Positions a tile of this many result channels keeps in registers.
  int max_positions[kMaxTileChannels + 1];
  // Result channels [0, channels) of all `tiles`; `bias` may be null, `lanes` below 16 masks.
  void (*tiles)(int channels, const ConvWalk& walk, std::span<const ConvTile> tiles, int lanes,
                const float* x, const float* w, const float* bias, float* y);
  // gw[k * gw_channel + t] for k < channels and the taps t of one tile.
  void (*weight_tile)(int channels, const ConvTaps& taps, const ConvArea& area, int64_t gy_channel,
                      const float* gy, const float* x, float* gw, int64_t gw_channel);
};
TESSERA_KERNELS(ConvChwnKernels, conv_chwn)

// A contiguous block of channels of one group.
struct ChannelBlock {
  int64_t group = 0, begin = 0, count = 0;  // begin: within the group
};

// Everything about a forward or input-gradient call that is known before data arrives.
class ConvChwnPlan {
 public:
  static ConvChwnPlan forward(const ConvShape& s, const ConvChwnKernels& table);
  static ConvChwnPlan input_grad(const ConvShape& s, const ConvChwnKernels& table);

  // Part `part` of `parts` of the work; parts touch disjoint results.
  void run(const float* x, const float* w, const float* bias, float* y, int part, int parts) const;

 private:
  // Tiles over part of the batch, repeated `chunks` times at `step` elements.
  struct Section {
    int64_t begin = 0, step = 0, chunks = 1;
    int lanes = kBatchBlock;
    std::vector<ConvTile> tiles;
  };
  struct Axis;

  void build(const ConvShape& s, const std::vector<Axis>& rows, const std::vector<Axis>& cols,
             int64_t x_width);

  const ConvChwnKernels* table_ = nullptr;
  ConvWalk walk_;
  int64_t x_group_ = 0, w_group_ = 0, y_group_ = 0, group_results_ = 0;
  std::vector<ChannelBlock> blocks_;
  std::vector<Section> sections_;
  int64_t units_ = 0;
};

// The weight gradient. With padding, x is first copied into a zero-bordered image in scratch
// memory, so that all taps share one pixel loop.
class ConvChwnWeightPlan {
 public:
  ConvChwnWeightPlan(const ConvShape& s, const ConvChwnKernels& table);

  int64_t scratch_floats() const { return padded_floats_ + partial_floats_; }
  bool pads() const { return padded_floats_ > 0; }
  bool splits() const { return chunks_ > 1; }
  // Three phases, each done in parts, with a barrier between them: pad (if pads()), sum, and
  // combine (if splits()). The cut into partial sums does not depend on `parts`.
  void pad(const float* x, float* scratch, int part, int parts) const;
  void sum(const float* gy, const float* x, float* gw, float* scratch, int part, int parts) const;
  void combine(const float* scratch, float* gw, int part, int parts) const;

 private:
  ConvShape s_;
  const ConvChwnKernels* table_;
  int64_t height_ = 0, width_ = 0;  // of the image that taps index, padded or not
  int64_t padded_floats_ = 0, partial_floats_ = 0, chunks_ = 1;
  ConvArea area_;
  std::vector<ChannelBlock> blocks_;
  std::vector<ConvTaps> taps_;
};

}  // namespace tessera::kernels
