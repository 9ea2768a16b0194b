// SPDX-License-Identifier: Apache-2.0
// Every field stands once: `Out` writes what `In` reads.
#include "executable/program_bytes.h"

#include <memory>

namespace tessera {
namespace {

constexpr int kMostDepth = 64;    // of bodies in bodies
constexpr size_t kMostDims = 64;  // of a tensor
constexpr int64_t kMostIndex = 1 << 24;

constexpr int kSourceKinds = 0
#define ROW(name, text, owner, written) +1
    TESSERA_SOURCE_KINDS(ROW)
#undef ROW
    ;
constexpr int kPortKinds = static_cast<int>(PortKind::kState) + 1;
constexpr int kWorkKinds = static_cast<int>(WorkKind::kHost) + 1;

class Out {
 public:
  explicit Out(Writer& w) : w_(w) {}

  void text(std::string& s) { w_.text(s); }
  void flag(bool& v) { w_.flag(v); }
  void real(double& v) { w_.real(v); }
  void number(int64_t& v) { w_.integer(v); }  // any
  void size(int64_t& v) { w_.integer(v); }    // of memory
  void index(int& v) { w_.integer(v); }       // -1 for none
  template <typename E>
  void choice(E& v, int) {
    w_.number(static_cast<uint64_t>(v));
  }
  void op(Op& v) { w_.text(op_text(v)); }
  void arg(Arg& a) { w_.arg(a); }
  template <typename T, typename F>
  void list(std::vector<T>& items, const F& each) {
    w_.number(items.size());
    for (T& item : items) each(item);
  }
  void tensor(TensorRef& t) {
    choice(t.dtype, kDTypes);
    list(t.shape, [&](int64_t& d) { size(d); });
    bool dense = t.strides == dense_strides(t.shape);
    flag(dense);
    if (!dense)
      for (int64_t& s : t.strides) number(s);
  }
  template <typename F>
  void bodies(std::vector<std::shared_ptr<const Section>>& list, const F& each) {
    w_.number(list.size());
    for (auto& body : list) each(const_cast<Section&>(*body));
  }

 private:
  Writer& w_;
};

class In {
 public:
  explicit In(Reader& r) : r_(r) {}

  void text(std::string& s) { s = r_.text(); }
  void flag(bool& v) { v = r_.flag(); }
  void real(double& v) { v = r_.real(); }
  void number(int64_t& v) { v = r_.integer(); }
  void size(int64_t& v) { v = r_.integer(0, kMaxTensorBytes, "size"); }
  void index(int& v) { v = static_cast<int>(r_.integer(-1, kMostIndex, "index")); }
  template <typename E>
  void choice(E& v, int end) {
    v = static_cast<E>(r_.number(static_cast<uint64_t>(end), "kind"));
  }
  void op(Op& v) {
    const std::string& name = r_.text();
    const std::optional<Op> found = op_from_text(name);
    sound(found.has_value(), "there is no op \"{}\"", name);
    v = *found;
  }
  void arg(Arg& a) { a = r_.arg(); }
  template <typename T, typename F>
  void list(std::vector<T>& items, const F& each) {
    items = r_.list<T>([&] {
      T item{};
      each(item);
      return item;
    });
  }
  void tensor(TensorRef& t) {
    choice(t.dtype, kDTypes);
    list(t.shape, [&](int64_t& d) { size(d); });
    check_shape(t.dtype, t.shape);
    if (r_.flag()) {
      t.strides = dense_strides(t.shape);
      return;
    }
    for (size_t i = 0; i < t.shape.size(); ++i)
      t.strides.push_back(r_.integer(-kMaxTensorBytes, kMaxTensorBytes, "stride"));
  }
  template <typename F>
  void bodies(std::vector<std::shared_ptr<const Section>>& list, const F& each) {
    const size_t n = r_.count();
    sound(n == 0 || ++depth_ <= kMostDepth, "bodies are nested too deeply");
    for (size_t i = 0; i < n; ++i) {
      auto body = std::make_shared<Section>();
      each(*body);
      list.push_back(std::move(body));
    }
    if (n > 0) --depth_;
  }
  static void check_shape(DType dtype, const Dims& shape) {
    sound(shape.size() <= kMostDims, "a tensor has {} dims", shape.size());
    int64_t bytes = size_of(dtype);
    bool fits = true, empty = false;
    for (int64_t d : shape) {
      empty |= d == 0;
      fits &= !__builtin_mul_overflow(bytes, std::max<int64_t>(d, 1), &bytes);
    }
    // Strides of an empty tensor are products of its other sizes.
    sound(fits && (empty || bytes <= kMaxTensorBytes), "a tensor is too large");
  }

 private:
  Reader& r_;
  int depth_ = 0;
};

template <typename A>
void fields(A& a, DType& dtype, Dims& shape) {
  a.choice(dtype, kDTypes);
  a.list(shape, [&](int64_t& d) { a.size(d); });
  In::check_shape(dtype, shape);
}

template <typename A>
void fields(A& a, TensorRef& t) {
  a.tensor(t);
  a.index(t.region);
  a.size(t.offset);
}

template <typename A>
void fields(A& a, Source& s) {
  a.choice(s.kind, kSourceKinds);
  a.text(s.name);
  a.text(s.param);
  a.index(s.group);
}

template <typename A>
void fields(A& a, StateDesc& s) {
  a.text(s.name);
  fields(a, s.dtype, s.shape);
  a.size(s.offset);
  fields(a, s.source);
  a.index(s.ipu);
  a.flag(s.off_chip);
  a.size(s.shards);
}

template <typename A>
void fields(A& a, PortDesc& p) {
  a.text(p.name);
  fields(a, p.dtype, p.shape);
  a.flag(p.used);
}

template <typename A>
void fields(A& a, Work& w) {
  a.choice(w.kind, kWorkKinds);
  for (int64_t* v : {&w.flops, &w.bytes, &w.m, &w.n, &w.k, &w.batch}) a.number(*v);
  bool given = w.available_memory != 0;
  a.flag(given);
  if (given) a.real(w.available_memory);
}

template <typename A>
void fields(A& a, Section& section);

template <typename A>
void fields(A& a, StepDesc& s) {
  a.op(s.op);
  a.text(s.target);
  a.list(s.args.list, [&](Arg& v) { a.arg(v); });
  a.list(s.inputs, [&](TensorRef& t) { fields(a, t); });
  a.list(s.outputs, [&](TensorRef& t) { fields(a, t); });
  a.text(s.body);
  a.text(s.where);
  a.flag(s.fixed_weights);
  a.flag(s.pieces);
  a.bodies(s.bodies, [&](Section& body) { fields(a, body); });
  if (!s.bodies.empty()) fields(a, s.workspace);
}

template <typename A>
void fields(A& a, Section& section) {
  a.list(section.steps, [&](StepDesc& s) { fields(a, s); });
  a.list(section.work, [&](Work& w) { fields(a, w); });
  a.list(section.buffers, [&](BufferInfo& b) {
    a.size(b.offset);
    a.size(b.bytes);
    a.index(b.first_step);
    a.index(b.last_step);
  });
}

template <typename A>
void fields(A& a, TaskPort& p) {
  a.choice(p.kind, kPortKinds);
  a.index(p.index);
  a.number(p.staging);
  a.text(p.state);
}

template <typename A>
void fields(A& a, TaskDesc& t) {
  a.text(t.name);
  a.index(t.ipu);
  a.index(t.stage);
  a.index(t.phase);
  a.flag(t.backward);
  a.index(t.group);
  a.list(t.inputs, [&](TaskPort& p) { fields(a, p); });
  a.list(t.outputs, [&](TaskPort& p) { fields(a, p); });
  a.list(t.copies, [&](CopyDesc& c) {
    a.index(c.from);
    a.index(c.to);
  });
  a.list(t.waits, [&](WaitDesc& w) {
    a.index(w.task);
    a.size(w.lag);
  });
  fields(a, t.section);
  a.size(t.arena_bytes);
  a.size(t.staging_bytes);
}

template <typename A>
void fields(A& a, ChannelDesc& c) {
  a.index(c.from);
  a.list(c.readers, [&](int& r) { a.index(r); });
  a.index(c.ipu);
  fields(a, c.dtype, c.shape);
  a.size(c.slots);
  a.size(c.offset);
  a.flag(c.off_chip);
  a.size(c.exchange_size);
  a.size(c.exchange_stride);
}

template <typename A>
void fields(A& a, IpuDesc& i) {
  for (int64_t* v : {&i.arena_bytes, &i.channel_bytes, &i.state_bytes, &i.staging_bytes,
                     &i.streaming_channel_bytes, &i.streaming_state_bytes, &i.state_offset,
                     &i.streaming_state_offset})
    a.size(*v);
}

template <typename A>
void fields(A& a, Program& p) {
  a.text(p.name);
  a.list(p.states, [&](StateDesc& s) { fields(a, s); });
  a.list(p.inputs, [&](PortDesc& d) { fields(a, d); });
  a.list(p.outputs, [&](PortDesc& d) { fields(a, d); });
  a.list(p.tasks, [&](TaskDesc& t) { fields(a, t); });
  fields(a, p.update);
  a.size(p.arena_bytes);
  a.size(p.state_bytes);
  a.list(p.channels, [&](ChannelDesc& c) { fields(a, c); });
  a.list(p.ipus, [&](IpuDesc& i) { fields(a, i); });
  a.size(p.update_arena_bytes);
  a.flag(p.pipelined);
}

}  // namespace

std::string program_bytes(const Program& program) {
  Writer w;
  Out out(w);
  fields(out, const_cast<Program&>(program));  // which it only looks at
  return w.take();
}

Program read_program(Bytes bytes) {
  Reader r(bytes);
  In in(r);
  Program p;
  fields(in, p);
  r.end();
  return p;
}

}  // namespace tessera
