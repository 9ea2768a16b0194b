// SPDX-License-Identifier: Apache-2.0
#include "kernels/beam.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace tessera::kernels {
namespace {

constexpr double kNever = -std::numeric_limits<double>::infinity();

double log_add(double a, double b) {
  if (a < b) std::swap(a, b);
  return b == kNever ? a : a + std::log1p(std::exp(b - a));
}

// A label behind a sequence: sequences are the paths of a tree. One that was given up and found
// again is in it twice, so hashes say which are equal.
struct Label {
  int32_t before;  // the sequence without it, -1 for the empty one
  int32_t label;
  uint64_t before_hash, hash;
};

uint64_t hash_behind(uint64_t hash, int32_t label) {
  uint64_t x = hash + 0x9e3779b97f4a7c15u * (static_cast<uint64_t>(label) + 1);
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// A sequence that is followed: the log probability that the steps so far end in a blank, or in its
// last label.
struct Beam {
  int32_t sequence;
  double blank, label;
  double total() const { return log_add(blank, label); }
};

// What a beam may become in the next step: itself (label -1) or itself and one label.
struct Next {
  double total, in_blank, in_label;
  int32_t beam, label;
};

bool better(const Next& a, const Next& b) {
  if (a.total != b.total) return a.total > b.total;
  return a.beam != b.beam ? a.beam < b.beam : a.label < b.label;
}

}  // namespace

int64_t BeamSearch::scratch_bytes() const {
  const int64_t bytes = (steps * width + 1) * static_cast<int64_t>(sizeof(Label)) +
                        2 * width * static_cast<int64_t>(sizeof(Beam)) +
                        width * classes * static_cast<int64_t>(sizeof(Next)) + classes * 4;
  return bytes;
}

void BeamSearch::run(const float* logp, int64_t logp_step, int64_t length, int64_t top,
                     float* score, int32_t* lengths, int32_t* labels, std::byte* scratch) const {
  auto* nexts = reinterpret_cast<Next*>(scratch);
  auto* beams = reinterpret_cast<Beam*>(nexts + width * classes);
  auto* chosen = beams + width;
  auto* tree = reinterpret_cast<Label*>(chosen + width);
  // Of one beam: the beam that is its sequence and one label, or -1.
  auto* longer = reinterpret_cast<int32_t*>(tree + steps * width + 1);
  std::fill_n(longer, classes, -1);
  int32_t grown = 0;
  int64_t count = 1;
  beams[0] = {-1, 0.0, kNever};
  for (int64_t t = 0; t < length; ++t, logp += logp_step) {
    int64_t n = 0;
    for (int64_t b = 0; b < count; ++b) {
      const Beam& beam = beams[b];
      const int32_t last = beam.sequence < 0 ? -1 : tree[beam.sequence].label;
      const double again = last < 0 ? kNever : beam.label + logp[last];
      nexts[n++] = {0, beam.total() + logp[blank], again, static_cast<int32_t>(b), -1};
    }
    for (int64_t b = 0; b < count; ++b) {
      const Beam& beam = beams[b];
      const int32_t last = beam.sequence < 0 ? -1 : tree[beam.sequence].label;
      const uint64_t hash = beam.sequence < 0 ? 0 : tree[beam.sequence].hash;
      auto set_longer = [&](bool known) {
        for (int64_t i = 0; i < count; ++i)
          if (const int32_t s = beams[i].sequence; s >= 0 && tree[s].before_hash == hash)
            longer[tree[s].label] = known ? static_cast<int32_t>(i) : -1;
      };
      set_longer(true);
      for (int32_t c = 0; c < classes; ++c) {
        if (c == blank) continue;
        // The same label again is a new one only behind a blank.
        const double p = (c == last ? beam.blank : beam.total()) + logp[c];
        if (p == kNever) continue;
        if (const int32_t same = longer[c]; same >= 0)
          nexts[same].in_label = log_add(nexts[same].in_label, p);
        else
          nexts[n++] = {0, kNever, p, static_cast<int32_t>(b), c};
      }
      set_longer(false);
    }
    for (int64_t i = 0; i < n; ++i) nexts[i].total = log_add(nexts[i].in_blank, nexts[i].in_label);
    const int64_t kept = std::min(n, width);
    std::partial_sort(nexts, nexts + kept, nexts + n, better);
    for (int64_t i = 0; i < kept; ++i) {
      const Next& next = nexts[i];
      int32_t sequence = beams[next.beam].sequence;
      if (next.label >= 0) {
        const uint64_t hash = sequence < 0 ? 0 : tree[sequence].hash;
        tree[grown] = {sequence, next.label, hash, hash_behind(hash, next.label)};
        sequence = grown++;
      }
      chosen[i] = {sequence, next.in_blank, next.in_label};
    }
    std::swap(beams, chosen);
    count = kept;
  }
  for (int64_t i = 0; i < top; ++i) {
    int32_t* path = labels + i * steps;
    std::fill_n(path, steps, static_cast<int32_t>(blank));
    const bool found = i < count;
    score[i] = static_cast<float>(found ? beams[i].total() : kNever);
    int32_t size = 0;
    for (int32_t s = found ? beams[i].sequence : -1; s >= 0; s = tree[s].before)
      path[size++] = tree[s].label;
    std::reverse(path, path + size);
    lengths[i] = size;
  }
}

}  // namespace tessera::kernels
