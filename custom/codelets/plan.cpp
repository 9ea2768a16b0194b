// SPDX-License-Identifier: Apache-2.0
// From the description of a compute set to the form in which it runs.
#include "custom/codelets/plan.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <stdexcept>
#include <tuple>
#include <unordered_map>

#include "custom/codelets/compute_sets.h"
#include "custom/codelets/process.h"

namespace tessera::codelets {
namespace {

constexpr uint64_t kLine = 64;
constexpr uint64_t kVertexWeight = 256;  // bytes that take as long as calling a vertex

uint64_t round_up(uint64_t n, uint64_t to) {
  return (n + to - 1) / to * to;
}

std::string place(const VertexDescription& v, const tessera_field& f) {
  return std::string("field \"") + f.name + "\" of vertex \"" + v.type->name + "\"";
}

// The nearest half, ties to even.
uint16_t to_half(double value) {
  _Float16 h = static_cast<_Float16>(value);
  uint16_t bits;
  std::memcpy(&bits, &h, sizeof bits);
  return bits;
}

void store_number(std::byte* at, const tessera_field& f, double real, int64_t integer) {
  if (f.real != 0 && f.bytes == 4) {
    auto x = static_cast<float>(real);
    std::memcpy(at, &x, sizeof x);
  } else if (f.real != 0 && f.bytes == 2) {
    uint16_t x = to_half(real);
    std::memcpy(at, &x, sizeof x);
  } else if (f.real != 0) {
    std::memcpy(at, &real, sizeof real);
  } else {
    if (f.type == 9) integer = integer != 0;
    std::memcpy(at, &integer, std::min<size_t>(f.bytes, sizeof integer));  // little endian
  }
}

class Builder {
 public:
  Builder(Plan& plan, const Variables& variables) : plan_(plan), variables_(variables) {}

  // Which variables the set reads and writes.
  void note(const VertexDescription& v) {
    each_connection(v, [&](const tessera_field& f, const Piece& p) {
      inputs_.emplace(p.variable, 0);
      if ((f.direction & TESSERA_FIELD_WRITE) == 0) return;
      outputs_.emplace(p.variable, 0);
      writes_.emplace_back(p.variable, p.begin, p.begin + p.count);
    });
  }

  void make_tensors() {
    for (auto& [variable, index] : inputs_) {
      index = static_cast<uint32_t>(plan_.inputs.size());
      plan_.inputs.push_back(tensor(variable));
    }
    for (auto& [variable, index] : outputs_) {
      index = static_cast<uint32_t>(plan_.inputs.size() + plan_.outputs.size());
      PlannedTensor out = tensor(variable);
      out.before = static_cast<int32_t>(inputs_.at(variable));
      plan_.outputs.push_back(std::move(out));
    }
    plan_.copies = !plan_.outputs.empty();
    std::sort(writes_.begin(), writes_.end());
    for (size_t i = 1; i < writes_.size(); ++i)
      if (std::get<0>(writes_[i]) == std::get<0>(writes_[i - 1]) &&
          std::get<1>(writes_[i]) < std::get<2>(writes_[i - 1]))
        throw std::runtime_error("compute set \"" + plan_.name +
                                 "\": two vertices, or two fields of one, write the same element");
  }

  void add(const VertexDescription& v) {
    PlannedVertex out;
    out.type = v.type;
    out.library = v.library.get();
    out.first_link = plan_.links.size();
    out.first_transfer = plan_.transfers.size();
    image_.assign(v.type->bytes, std::byte{0});
    if (v.type->construct != nullptr) v.type->construct(image_.data());
    buffer_ = 0;
    touched_ = kVertexWeight;
    for (uint32_t i = 0; i < v.type->field_count; ++i) add_field(v, v.type->fields[i], v.fields[i]);
    out.links = static_cast<uint32_t>(plan_.links.size() - out.first_link);
    out.transfers = static_cast<uint32_t>(plan_.transfers.size() - out.first_transfer);
    out.image_bytes = static_cast<uint32_t>(image_.size());
    out.image = keep_image();
    out.buffer_bytes = buffer_;
    plan_.largest_image = std::max<uint64_t>(plan_.largest_image, image_.size());
    largest_buffer_ = std::max(largest_buffer_, buffer_);
    plan_.weight.push_back((plan_.weight.empty() ? 0 : plan_.weight.back()) + touched_);
    plan_.vertices.push_back(out);
  }

  void finish() {
    plan_.scratch_bytes =
        round_up(plan_.largest_image, kLine) + round_up(largest_buffer_, kLine) + kLine;
  }

 private:
  template <typename F>
  void each_connection(const VertexDescription& v, F f) {
    for (uint32_t i = 0; i < v.type->field_count; ++i)
      for (const Pieces& row : v.fields[i].rows)
        for (const Piece& p : row) f(v.type->fields[i], p);
  }

  PlannedTensor tensor(uint32_t variable) {
    VariableInfo info = variables_(variable);
    PlannedTensor t{variable, info.dtype, info.element_bytes, info.shape, -1};
    for (int64_t n : t.shape) t.bytes *= static_cast<uint64_t>(n);
    return t;
  }

  // Room at the end of the image, with its place.
  uint32_t grow(uint64_t bytes) {
    uint64_t at = round_up(image_.size(), 16);
    if (at + bytes >= uint64_t{1} << 31)
      throw std::runtime_error("the state of a vertex is too large");
    image_.resize(at + bytes);
    return static_cast<uint32_t>(at);
  }

  void store_size(uint64_t slot, uint64_t n) {
    auto size = static_cast<size_t>(n);
    std::memcpy(image_.data() + slot + sizeof(void*), &size, sizeof size);
  }

  void add_field(const VertexDescription& v, const tessera_field& f, const FieldValue& value) {
    switch (f.kind) {
      case TESSERA_FIELD_UNKNOWN:
        return;
      case TESSERA_FIELD_VALUE:
        if (value.set)
          for (uint32_t i = 0; i < f.count; ++i)
            store_number(image_.data() + f.offset + i * f.bytes, f, value.reals[i], value.ints[i]);
        return;
      case TESSERA_FIELD_STATE: {
        size_t n = value.reals.size();
        uint32_t at = grow(n * f.bytes);
        for (size_t i = 0; i < n; ++i)
          store_number(image_.data() + at + i * f.bytes, f, value.reals[i], value.ints[i]);
        plan_.links.push_back({f.offset, kImage, at, n * f.bytes, 1, 0});
        return store_size(f.offset, n);
      }
      case TESSERA_FIELD_SCALAR:
      case TESSERA_FIELD_VECTOR:
        if (!value.connected) throw std::runtime_error(place(v, f) + " is not connected");
        return bind(f, f.offset, value.rows[0]);
      default:
        break;
    }
    if (!value.connected) throw std::runtime_error(place(v, f) + " is not connected");
    bool scalars = f.kind == TESSERA_FIELD_SCALARS;
    uint64_t each = scalars ? sizeof(void*) : sizeof(void*) + sizeof(size_t);
    uint32_t at = grow(value.rows.size() * each);
    plan_.links.push_back({f.offset, kImage, at, value.rows.size() * each, 1, 0});
    store_size(f.offset, value.rows.size());
    for (size_t i = 0; i < value.rows.size(); ++i) {
      if (!value.given[i])
        throw std::runtime_error("element " + std::to_string(i) + " of " + place(v, f) +
                                 " is not connected");
      bind(f, at + static_cast<uint32_t>(i * each), value.rows[i]);
    }
  }

  // What is written is bound to the new value of a variable, what is only read to the one before.
  uint32_t tensor_of(const tessera_field& f, uint32_t variable) const {
    return (f.direction & TESSERA_FIELD_WRITE) != 0 ? outputs_.at(variable) : inputs_.at(variable);
  }

  void bind(const tessera_field& f, uint32_t slot, const Pieces& pieces) {
    uint64_t n = 0;
    for (const Piece& p : pieces) n += p.count;
    touched_ += n * f.bytes;
    if (f.kind == TESSERA_FIELD_VECTOR || f.kind == TESSERA_FIELD_VECTORS) store_size(slot, n);
    if (pieces.size() == 1 && pieces[0].begin * f.bytes % f.align == 0) {
      plan_.links.push_back({slot, kTensor + tensor_of(f, pieces[0].variable),
                             pieces[0].begin * f.bytes, n * f.bytes, f.align, f.direction});
      return;
    }
    uint64_t at = round_up(buffer_, std::max<uint64_t>(16, f.align));
    plan_.links.push_back({slot, kBuffer, at, n * f.bytes, f.align, f.direction});
    // What a vertex does not write keeps its value, so outputs are read as well.
    for (const Piece& p : pieces) {
      uint64_t bytes = p.count * f.bytes;
      plan_.transfers.push_back({at, p.begin * f.bytes, bytes, tensor_of(f, p.variable),
                                 f.direction | TESSERA_FIELD_READ});
      at += bytes;
    }
    buffer_ = at;
  }

  // Vertices whose images are equal share one.
  uint64_t keep_image() {
    std::string key(reinterpret_cast<const char*>(image_.data()), image_.size());
    auto [it, fresh] = images_.emplace(std::move(key), plan_.images.size());
    if (fresh) plan_.images.insert(plan_.images.end(), image_.begin(), image_.end());
    return it->second;
  }

  Plan& plan_;
  const Variables& variables_;
  std::map<uint32_t, uint32_t> inputs_, outputs_;  // variable to tensor of the plan
  std::vector<std::tuple<uint32_t, uint64_t, uint64_t>> writes_;
  std::unordered_map<std::string, uint64_t> images_;
  std::vector<std::byte> image_;
  uint64_t buffer_ = 0, largest_buffer_ = 0, touched_ = 0;
};

template <typename T>
void append(std::string& text, const std::vector<T>& values) {
  text.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

// Equal sets have equal names, in every process.
std::string op_name(const Plan& plan) {
  static_assert(sizeof(Link) == 32 && sizeof(Transfer) == 32, "no padding");
  std::string text;
  for (const auto& library : plan.libraries) text += library->id() + ";";
  for (const auto* tensors : {&plan.inputs, &plan.outputs})
    for (const PlannedTensor& t : *tensors) {
      text += std::to_string(t.dtype) + ":" + std::to_string(t.before);
      append(text, t.shape);
    }
  for (const PlannedVertex& v : plan.vertices)
    text += std::string(v.type->name) + ";" + std::to_string(v.image) + ";" +
            std::to_string(v.links) + ";" + std::to_string(v.transfers) + "\n";
  append(text, plan.images);
  append(text, plan.links);
  append(text, plan.transfers);
  std::string name;
  for (char c : plan.name.substr(0, 40))
    name += std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  return (name.empty() ? "set" : name) + "_" + digest(text).substr(0, 20);
}

}  // namespace

std::unique_ptr<Plan> ComputeSets::plan(int64_t set, const Variables& variables) const {
  if (set < 0 || set >= static_cast<int64_t>(sets_.size()))
    throw std::runtime_error("Execute: no such compute set");
  const Set& s = sets_[set];
  auto plan = std::make_unique<Plan>();
  plan->name = s.name;
  Builder builder(*plan, variables);
  for (int64_t v : s.vertices) builder.note(vertices_[v]);
  builder.make_tensors();
  for (int64_t i : s.vertices) {
    const VertexDescription& v = vertices_[i];
    builder.add(v);
    plan->random = plan->random || v.library->random();
    if (std::find(plan->libraries.begin(), plan->libraries.end(), v.library) ==
        plan->libraries.end())
      plan->libraries.push_back(v.library);
  }
  builder.finish();
  plan->op = op_name(*plan);
  return plan;
}

}  // namespace tessera::codelets
