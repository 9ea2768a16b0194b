// SPDX-License-Identifier: Apache-2.0
// Tile mapping: kept per interval of elements of each variable, as it was set, and given back for
// any view. Nothing is computed from it here; ops that make vertices read it.
#include <algorithm>

#include "custom/compat/recorder_impl.h"

namespace tessera::compat {

namespace {

constexpr int64_t kTiles = 1472;  // of an IPU-POD's chip

struct Range {
  int64_t begin, end;
};

void add_range(std::vector<Range>& out, int64_t begin, int64_t end) {
  if (begin == end) return;
  if (!out.empty() && out.back().end == begin)
    out.back().end = end;
  else
    out.push_back({begin, end});
}

// Elements of the parent, in the order of the view. Of a concatenation: elements of its parts one
// after the other.
std::vector<Range> parent_ranges(const View& v) {
  std::vector<Range> out;
  const Shape& in = v.parent().dims;
  const auto inner_of = [&](const Shape& s, int64_t dim) {
    int64_t n = 1;
    for (size_t i = dim + 1; i < s.size(); ++i) n *= s[i];
    return n;
  };
  switch (v.how) {
    case TESSERA_VIEW_SLICE: {
      const int64_t inner = inner_of(in, v.args[0]), row = in[v.args[0]] * inner;
      for (int64_t at = 0; row > 0 && at < v.parent().elements; at += row)
        add_range(out, at + v.args[1] * inner, at + v.args[2] * inner);
      return out;
    }
    case TESSERA_VIEW_BROADCAST: {
      const int64_t row = in[v.args[0]] * inner_of(in, v.args[0]);
      for (int64_t at = 0; row > 0 && at < v.parent().elements; at += row)
        for (int64_t k = 0; k < v.args[1]; ++k) add_range(out, at, at + row);
      return out;
    }
    case TESSERA_VIEW_REVERSE: {
      const int64_t inner = inner_of(in, v.args[0]), n = in[v.args[0]], row = n * inner;
      for (int64_t at = 0; row > 0 && at < v.parent().elements; at += row)
        for (int64_t k = n; k-- > 0;) add_range(out, at + k * inner, at + (k + 1) * inner);
      return out;
    }
    case TESSERA_VIEW_PERMUTE: {
      Shape stride(in.size(), 1);
      for (size_t i = in.size(); i-- > 1;) stride[i - 1] = stride[i] * in[i];
      Shape index(in.size(), 0);
      for (int64_t k = 0; k < v.elements; ++k) {
        int64_t at = 0;
        for (size_t i = 0; i < index.size(); ++i) at += index[i] * stride[v.args[i]];
        add_range(out, at, at + 1);
        for (size_t i = index.size(); i-- > 0;) {
          if (++index[i] < v.dims[i]) break;
          index[i] = 0;
        }
      }
      return out;
    }
    case TESSERA_VIEW_CONCAT: {
      const int64_t dim = v.args[0], inner = inner_of(in, dim);
      int64_t outer = 1;
      for (int64_t i = 0; i < dim; ++i) outer *= in[i];
      for (int64_t o = 0; o < outer; ++o) {
        int64_t before = 0;
        for (const View* p : v.parents) {
          const int64_t row = p->dims[dim] * inner;
          add_range(out, before + o * row, before + (o + 1) * row);
          before += p->elements;
        }
      }
      return out;
    }
    default:
      add_range(out, 0, v.elements);
      return out;
  }
}

}  // namespace

std::vector<Region> regions_of(const View& v) {
  if (v.how == TESSERA_VIEW_VARIABLE) return {{v.variable, 0, v.elements}};
  std::vector<Region> base;
  for (const View* p : v.parents)
    for (const Region& r : regions_of(*p)) base.push_back(r);
  std::vector<int64_t> starts;
  int64_t at = 0;
  for (const Region& r : base) {
    starts.push_back(at);
    at += r.end - r.begin;
  }
  std::vector<Region> out;
  for (const Range& range : parent_ranges(v)) {
    size_t i = std::upper_bound(starts.begin(), starts.end(), range.begin) - starts.begin() - 1;
    for (int64_t p = range.begin; p < range.end; ++i) {
      const int64_t from = base[i].begin + (p - starts[i]);
      const int64_t size = std::min(range.end - p, base[i].end - from);
      if (size > 0) {
        if (!out.empty() && out.back().variable == base[i].variable && out.back().end == from)
          out.back().end = from + size;
        else
          out.push_back({base[i].variable, from, from + size});
      }
      p += size;
    }
  }
  return out;
}

namespace {

// One interval a tile, as even as can be.
std::vector<Interval> linear(int64_t elements) {
  std::vector<Interval> out;
  const int64_t per = (elements + kTiles - 1) / kTiles;
  for (int64_t tile = 0, at = 0; at < elements; ++tile, at += per)
    out.push_back({at, std::min(at + per, elements), tile});
  return out;
}

void map_part(Variable& v, int64_t begin, int64_t end, int64_t tile) {
  std::vector<Interval>& m = v.mapping;
  if (m.empty() || m.back().end <= begin) {
    m.push_back({begin, end, tile});
    return;
  }
  std::vector<Interval> out;
  for (const Interval& i : m) {
    if (i.begin < begin) out.push_back({i.begin, std::min(i.end, begin), i.tile});
    if (i.end > end) out.push_back({std::max(i.begin, end), i.end, i.tile});
  }
  out.push_back({begin, end, tile});
  std::sort(out.begin(), out.end(),
            [](const Interval& a, const Interval& b) { return a.begin < b.begin; });
  m = std::move(out);
}

std::vector<tessera_tile_interval> mapping_of(const View& v) {
  std::vector<tessera_tile_interval> out;
  int64_t at = 0;
  std::map<const Variable*, std::vector<Interval>> unset;
  for (const Region& r : regions_of(v)) {
    const std::vector<Interval>* m = &r.variable->mapping;
    if (m->empty()) {
      std::vector<Interval>& l = unset[r.variable];
      if (l.empty()) l = linear(product(r.variable->shape));
      m = &l;
    }
    auto i = std::lower_bound(m->begin(), m->end(), r.begin,
                              [](const Interval& x, int64_t b) { return x.end <= b; });
    for (; i != m->end() && i->begin < r.end; ++i) {
      const int64_t b = std::max(i->begin, r.begin), e = std::min(i->end, r.end);
      const int64_t from = at + b - r.begin, to = at + e - r.begin;
      if (!out.empty() && out.back().tile == i->tile && out.back().end == from)
        out.back().end = to;
      else
        out.push_back({i->tile, from, to});
    }
    at += r.end - r.begin;
  }
  std::stable_sort(out.begin(), out.end(),
                   [](const auto& a, const auto& b) { return a.tile < b.tile; });
  return out;
}

void set_mapping(const View& v, const tessera_tile_interval* intervals, int64_t count) {
  const std::vector<Region> regions = regions_of(v);
  std::vector<int64_t> starts;
  int64_t at = 0;
  for (const Region& r : regions) {
    starts.push_back(at);
    at += r.end - r.begin;
  }
  std::vector<tessera_tile_interval> sorted(intervals, intervals + count);
  std::sort(sorted.begin(), sorted.end(),
            [](const auto& a, const auto& b) { return a.begin < b.begin; });
  // A whole variable is mapped anew at once; pieces are put in one by one.
  if (v.how == TESSERA_VIEW_VARIABLE) v.variable->mapping.clear();
  for (const tessera_tile_interval& x : sorted) {
    if (x.tile < 0 || x.tile >= kTiles)
      fail("setTileMapping: tile " + std::to_string(x.tile) + " of " + std::to_string(kTiles));
    if (x.begin < 0 || x.begin > x.end || x.end > v.elements)
      fail("setTileMapping: elements [" + std::to_string(x.begin) + "," + std::to_string(x.end) +
           ") of a tensor of " + std::to_string(v.elements));
    if (x.begin == x.end) continue;
    size_t i = std::upper_bound(starts.begin(), starts.end(), x.begin) - starts.begin() - 1;
    for (int64_t p = x.begin; p < x.end; ++i) {
      const int64_t from = regions[i].begin + (p - starts[i]);
      const int64_t size = std::min(x.end - p, regions[i].end - from);
      if (size > 0)
        map_part(const_cast<Variable&>(*regions[i].variable), from, from + size, x.tile);
      p += size;
    }
  }
}

thread_local std::vector<tessera_tile_interval> answer;

}  // namespace
}  // namespace tessera::compat

using namespace tessera::compat;

int tessera_rec_set_mapping(const tessera_view* v, const tessera_tile_interval* intervals,
                            int64_t count) {
  return guarded<>(1, [&] {
    set_mapping(view_of(v), intervals, count);
    return 0;
  });
}

int tessera_rec_copy_mapping(const tessera_view* from, const tessera_view* to) {
  return guarded<>(1, [&] {
    const std::vector<tessera_tile_interval> m = mapping_of(view_of(from));
    set_mapping(view_of(to), m.data(), static_cast<int64_t>(m.size()));
    return 0;
  });
}

const tessera_tile_interval* tessera_rec_mapping(const tessera_view* v, int64_t* count) {
  answer = mapping_of(view_of(v));
  *count = static_cast<int64_t>(answer.size());
  return answer.data();
}

const tessera_tile_interval* tessera_rec_regions(const tessera_view* v, int64_t* count) {
  answer.clear();
  for (const Region& r : regions_of(view_of(v))) answer.push_back({r.variable->id, r.begin, r.end});
  *count = static_cast<int64_t>(answer.size());
  return answer.data();
}
