// SPDX-License-Identifier: Apache-2.0
// Per step a beam may stay as it is or grow by any label. Growing gives beam + log p[label], so
// with beams and labels in order of probability only the first few of each row can be among the
// best; the rest of a row is left as soon as one of it is behind the worst of those kept.
#include "kernels/beam.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace tessera::kernels {
namespace {

constexpr double kNever = -std::numeric_limits<double>::infinity();

double log_add(double a, double b) {
  if (a < b) std::swap(a, b);
  return b < a - 45 || b == kNever ? a : a + std::log1p(std::exp(b - a));
}

// A label appended to a sequence: sequences are the paths of a tree. One that was dropped and found
// a second time is in it twice, so hashes say which are equal.
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

// A sequence that is followed: the log probability that the steps so far end in a blank, in its
// last label, in either.
struct Beam {
  double blank, label, total;
  int32_t sequence, last;
};

// What a beam may become in the next step: itself (label -1) or itself and one label.
struct Next {
  double total;
  int32_t beam, label;
};

bool better(const Next& a, const Next& b) {
  if (a.total != b.total) return a.total > b.total;
  return a.beam != b.beam ? a.beam < b.beam : a.label < b.label;
}

// Ascending keys are descending floats, then ascending classes.
uint64_t key_of(float x, int64_t c) {
  const auto bits = std::bit_cast<uint32_t>(x);
  const uint32_t ascending = bits >> 31 ? ~bits : bits | 0x80000000u;
  return static_cast<uint64_t>(~ascending) << 32 | static_cast<uint64_t>(c);
}

// The memory of a search, cut from one block.
struct Room {
  Label* tree;  // steps * width
  Beam *beams, *chosen, *stays;
  Next* nexts;      // capacity
  uint64_t* order;  // classes, likeliest first
  int64_t* taken;   // of a class: the number of the row that may not use it
  int32_t* slots;   // hash table of beams
  int32_t *child,
      *sibling;  // of a beam: the first beam that is one label longer; the next such one

  int64_t capacity, mask;

  static int64_t table_size(int64_t width) {
    return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(width) * 2));
  }
  static int64_t capacity_of(int64_t width) { return std::max<int64_t>(4 * width, 64); }

  Room(const BeamSearch& s, std::byte* at) : capacity(capacity_of(s.width)) {
    mask = table_size(s.width) - 1;
    auto cut = [&at]<typename T>(T*& to, int64_t n) {
      to = reinterpret_cast<T*>(at);
      at += n * static_cast<int64_t>(sizeof(T));
    };
    cut(tree, s.steps * s.width);
    cut(beams, s.width);
    cut(chosen, s.width);
    cut(stays, s.width);
    cut(nexts, capacity);
    cut(order, s.classes);
    cut(taken, s.classes);
    cut(slots, mask + 1);
    cut(child, s.width);
    cut(sibling, s.width);
  }
};

uint64_t hash_of(const Room& m, int32_t sequence) {
  return sequence < 0 ? 0 : m.tree[sequence].hash;
}

// Fills child and sibling: which beams are other beams and one label.
void find_children(const Room& m, int64_t count) {
  std::fill_n(m.slots, m.mask + 1, -1);
  std::fill_n(m.child, count, -1);
  auto slot = [&](uint64_t hash) {
    uint64_t i = hash & static_cast<uint64_t>(m.mask);
    while (m.slots[i] >= 0 && hash_of(m, m.beams[m.slots[i]].sequence) != hash)
      i = (i + 1) & static_cast<uint64_t>(m.mask);
    return i;
  };
  for (int64_t b = 0; b < count; ++b)
    m.slots[slot(hash_of(m, m.beams[b].sequence))] = static_cast<int32_t>(b);
  for (int64_t b = 0; b < count; ++b) {
    if (m.beams[b].sequence < 0) continue;
    const int32_t parent = m.slots[slot(m.tree[m.beams[b].sequence].before_hash)];
    if (parent < 0) continue;
    m.sibling[b] = m.child[parent];
    m.child[parent] = static_cast<int32_t>(b);
  }
}

// The same label again is a new one only after a blank.
double grown(const Beam& beam, int32_t label, const float* logp) {
  return (label == beam.last ? beam.blank : beam.total) + static_cast<double>(logp[label]);
}

// Likeliest labels first, no more than can matter; false if there is a number that is none.
bool order_labels(const BeamSearch& s, const float* logp, uint64_t* order, int64_t& n) {
  bool sound = true;
  n = 0;
  for (int64_t c = 0; c < s.classes; ++c) {
    sound &= logp[c] < std::numeric_limits<float>::infinity();
    order[n] = key_of(logp[c], c);
    n += c != s.blank && logp[c] > -std::numeric_limits<float>::infinity();
  }
  if (!sound) return false;
  // A row may lack one label, its last, that the others are ordered before.
  const int64_t useful = std::min(n, s.width + 2);
  if (useful < n) std::nth_element(order, order + useful, order + n);
  n = useful;
  std::sort(order, order + n);
  return true;
}

// The best candidates found so far, in no order; those behind `worst` need not be added.
class Best {
 public:
  Best(const Room& m, int64_t width) : nexts_(m.nexts), capacity_(m.capacity), width_(width) {}

  bool add(const Next& next) {
    if (bounded_ && !better(next, worst_)) return false;
    nexts_[n_++] = next;
    if (n_ == capacity_) cut();
    return true;
  }
  // That many are there now: no more than `width_` of them will be kept.
  void bound() {
    if (n_ < width_) return;
    worst_ = *std::max_element(nexts_, nexts_ + n_, better);
    bounded_ = true;
  }
  int64_t sorted() {
    if (n_ > width_) cut();
    std::sort(nexts_, nexts_ + n_, better);
    return n_;
  }

 private:
  void cut() {
    std::nth_element(nexts_, nexts_ + width_ - 1, nexts_ + n_, better);
    n_ = width_;
    worst_ = nexts_[width_ - 1];
    bounded_ = true;
  }

  Next* nexts_;
  int64_t capacity_, width_, n_ = 0;
  Next worst_{};
  bool bounded_ = false;
};

// What each beam is after a step that adds no label to it, in `stays`.
void find_stays(const BeamSearch& s, const Room& m, int64_t count, const float* logp) {
  for (int64_t b = 0; b < count; ++b) {
    const Beam& beam = m.beams[b];
    const double again = beam.last < 0 ? kNever : beam.label + static_cast<double>(logp[beam.last]);
    m.stays[b] = {beam.total + static_cast<double>(logp[s.blank]), again, 0, beam.sequence,
                  beam.last};
  }
  for (int64_t b = 0; b < count; ++b)
    for (int32_t c = m.child[b]; c >= 0; c = m.sibling[c]) {
      Beam& longer = m.stays[c];
      longer.label = log_add(longer.label, grown(m.beams[b], longer.last, logp));
    }
  for (int64_t b = 0; b < count; ++b)
    m.stays[b].total = log_add(m.stays[b].blank, m.stays[b].label);
}

// The candidates of a step, best first, in `nexts`; returns how many are kept.
int64_t find_nexts(const BeamSearch& s, const Room& m, int64_t count, const float* logp,
                   int64_t usable, int64_t& row) {
  Best best(m, s.width);
  for (int64_t b = 0; b < count; ++b)
    if (m.stays[b].total > kNever) best.add({m.stays[b].total, static_cast<int32_t>(b), -1});
  best.bound();
  for (int64_t b = 0; b < count; ++b, ++row) {
    const Beam& beam = m.beams[b];
    auto add = [&](int32_t label) {
      const double p = grown(beam, label, logp);
      return p == kNever || best.add({p, static_cast<int32_t>(b), label});
    };
    for (int32_t c = m.child[b]; c >= 0; c = m.sibling[c]) m.taken[m.beams[c].last] = row;
    if (beam.last >= 0 && m.taken[beam.last] != row) {
      add(beam.last);
      m.taken[beam.last] = row;
    }
    for (int64_t i = 0; i < usable; ++i) {
      const auto label = static_cast<int32_t>(m.order[i] & 0xffffffffu);
      if (m.taken[label] != row && !add(label)) break;
    }
  }
  return best.sorted();
}

}  // namespace

int64_t BeamSearch::scratch_bytes() const {
  auto bytes = [](int64_t n, size_t each) { return n * static_cast<int64_t>(each); };
  return bytes(steps * width, sizeof(Label)) + bytes(3 * width, sizeof(Beam)) +
         bytes(Room::capacity_of(width), sizeof(Next)) + bytes(2 * classes, 8) +
         bytes(Room::table_size(width) + 2 * width, 4);
}

bool BeamSearch::run(const float* logp, int64_t logp_step, int64_t length, int64_t top,
                     float* score, int32_t* lengths, int32_t* labels, std::byte* scratch) const {
  Room m(*this, scratch);
  std::fill_n(m.taken, classes, -1);
  int32_t nodes = 0;
  int64_t count = 1, row = 0, usable = 0;
  bool sound = true;
  m.beams[0] = {0, kNever, 0, -1, -1};
  for (int64_t t = 0; t < length && count > 0; ++t, logp += logp_step) {
    sound = order_labels(*this, logp, m.order, usable);
    if (!sound) {
      count = 0;
      break;
    }
    find_children(m, count);
    find_stays(*this, m, count, logp);
    count = find_nexts(*this, m, count, logp, usable, row);
    for (int64_t i = 0; i < count; ++i) {
      const Next& next = m.nexts[i];
      if (next.label < 0) {
        m.chosen[i] = m.stays[next.beam];
        continue;
      }
      const int32_t before = m.beams[next.beam].sequence;
      const uint64_t hash = hash_of(m, before);
      m.tree[nodes] = {before, next.label, hash, hash_behind(hash, next.label)};
      m.chosen[i] = {kNever, next.total, next.total, nodes++, next.label};
    }
    std::swap(m.beams, m.chosen);
  }
  for (int64_t i = 0; i < top; ++i) {
    int32_t* path = labels + i * steps;
    std::fill_n(path, steps, static_cast<int32_t>(blank));
    const bool found = i < count;
    score[i] = static_cast<float>(found ? m.beams[i].total : kNever);
    int32_t size = 0;
    for (int32_t s = found ? m.beams[i].sequence : -1; s >= 0; s = m.tree[s].before)
      path[size++] = m.tree[s].label;
    std::reverse(path, path + size);
    lengths[i] = size;
  }
  return sound;
}

}  // namespace tessera::kernels
