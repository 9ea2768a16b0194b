// SPDX-License-Identifier: Apache-2.0
// Codelets: vertices found in C++ text, compiled, described, bound to tensors and run.
#include <doctest.h>
#include <unistd.h>

#include <algorithm>
#include <barrier>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include "custom/codelets/compute_sets.h"
#include "custom/codelets/process.h"
#include "custom/codelets/scan.h"
#include "custom/host.h"

using namespace tessera::codelets;
namespace fs = std::filesystem;

namespace {

// A cache of its own for every run of the tests.
struct Folder {
  fs::path path;
  Folder() : path(fs::temp_directory_path() / ("codelets-test-" + std::to_string(getpid()))) {
    fs::create_directories(path);
    setenv("XDG_CACHE_HOME", path.c_str(), 1);
  }
  ~Folder() {
    std::error_code error;
    fs::remove_all(path, error);
  }
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(path / name) << text;
    return (path / name).string();
  }
};

const Folder& folder() {
  static Folder f;
  return f;
}

template <typename F>
std::string error_of(F f) {
  try {
    f();
  } catch (const std::runtime_error& e) {
    return e.what();
  }
  return "no error";
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

constexpr int kFloat = 0, kHalf = 1, kInt = 2, kUnsigned = 3;

struct Tensor {
  int32_t dtype;
  uint64_t element_bytes;
  std::vector<int64_t> shape;
  std::vector<std::byte> data;

  template <typename T>
  static Tensor of(int32_t dtype, const std::vector<T>& values) {
    Tensor t{dtype, sizeof(T), {static_cast<int64_t>(values.size())}, {}};
    t.data.resize(values.size() * sizeof(T));
    std::memcpy(t.data.data(), values.data(), t.data.size());
    return t;
  }
  template <typename T>
  std::vector<T> values() const {
    std::vector<T> v(data.size() / sizeof(T));
    std::memcpy(v.data(), data.data(), data.size());
    return v;
  }
};

// Runs a set as the engine would, on the variables given.
void execute(const ComputeSets& sets, int64_t set, std::vector<Tensor>& variables, int threads,
             size_t shift = 0, const std::vector<int>& seed = {1, 2}) {
  auto plan = sets.plan(set, [&](uint32_t v) {
    return VariableInfo{variables[v].dtype, variables[v].element_bytes, variables[v].shape};
  });
  std::vector<uint32_t> in, out;
  for (auto& t : plan->inputs) in.push_back(t.variable);
  for (auto& t : plan->outputs) out.push_back(t.variable);
  const bool random = plan->random;
  std::string name = plan->op;
  register_plan(std::move(plan));
  const tessera_op* op = tessera_find_op(kDomain, name.c_str(), 1);
  REQUIRE(op != nullptr);
  tessera_call* call = tessera_call_new(op);
  for (uint32_t v : in)
    tessera_call_add_input(call, static_cast<tessera_dtype>(variables[v].dtype), 1,
                           variables[v].shape.data());
  const int64_t two = 2;
  if (random) tessera_call_add_input(call, TESSERA_I32, 1, &two);
  REQUIRE(tessera_call_setup(call) == 0);
  void* instance = nullptr;
  REQUIRE(tessera_call_prepare(call, &instance) == 0);
  // `shift` bytes off: tensors that the caller gives need not be aligned.
  std::vector<std::vector<std::byte>> memory;
  std::vector<const void*> inputs;
  std::vector<void*> outputs;
  auto place = [&](const Tensor& t) {
    memory.emplace_back(t.data.size() + 128);
    auto at = reinterpret_cast<uintptr_t>(memory.back().data());
    return reinterpret_cast<std::byte*>((at + 63) / 64 * 64 + shift);
  };
  memory.reserve(in.size() + out.size());
  for (uint32_t v : in) {
    std::byte* at = place(variables[v]);
    std::memcpy(at, variables[v].data.data(), variables[v].data.size());
    inputs.push_back(at);
  }
  if (random) inputs.push_back(seed.data());
  for (uint32_t v : out) outputs.push_back(place(variables[v]));
  std::barrier meet(threads);
  std::vector<std::string> errors;
  struct Team {
    std::barrier<>* meet;
  } team{&meet};
  std::vector<std::thread> workers;
  for (int t = 0; t < threads; ++t)
    workers.emplace_back([&, t] {
      std::vector<std::byte> scratch(static_cast<size_t>(tessera_call_scratch(call)) + 64);
      auto at = reinterpret_cast<uintptr_t>(scratch.data());
      tessera_run run{};
      run.size = sizeof run;
      run.thread = t;
      run.threads = threads;
      run.call = call;
      run.instance = instance;
      run.inputs = inputs.data();
      run.outputs = outputs.data();
      run.scratch = reinterpret_cast<void*>((at + 63) / 64 * 64);
      run.team = &team;
      run.barrier = [](const tessera_run* r) {
        static_cast<Team*>(r->team)->meet->arrive_and_wait();
      };
      op->compute(&run);
    });
  for (std::thread& w : workers) w.join();
  for (size_t i = 0; i < out.size(); ++i)
    std::memcpy(variables[out[i]].data.data(), outputs[i], variables[out[i]].data.size());
  tessera_call_destroy(call, instance);
  tessera_call_delete(call);
}

const char* const kVertices = R"cpp(
#include <poplar/Vertex.hpp>
#include <poplar/HalfFloat.hpp>
#include <cmath>
#include "scale.h"
  using namespace poplar;
  static constexpr auto PTR = VectorLayout::ONE_PTR;

  template <typename T>
  class [[poplar::constraint("elem(*a) != elem(*b)")]] L1 : public Vertex {
   public:
    L1();
    Input<Vector<T, VectorLayout::SPAN, 8>> a;
    Input<Vector<T, PTR, 8>> b;
    Output<float> out;
    const unsigned skip;
    bool compute() {
      T sum = 0;
      for (unsigned i = skip; i < a.size(); ++i) sum += std::abs(a[i] - b[i]);
      *out = sum;
      return true;
    }
  };
#define INSTANTIATE(...) template class L1<__VA_ARGS__>
  INSTANTIATE(float);
  INSTANTIATE(half);

  namespace acme {
  enum class Mode { Double, Halve };
  template <Mode M, int Times>
  struct Step : poplar::Vertex {
    poplar::InOut<poplar::Vector<float>> x, y;
    Vector<int> table;
    unsigned fixed[2];
    float by = SCALE;
    bool compute() {
      for (int t = 0; t < Times; ++t)
        for (auto& v : x) v = M == Mode::Double ? v * by : v / by;
      for (unsigned i = 0; i < y.size(); ++i) y[i] += table[i] + fixed[1];
      return true;
    }
  };
  template struct Step<Mode::Double, 2>;
  template struct Step<Mode::Halve, 1>;
  }  // namespace acme

  class Share : public MultiVertex {
    Vector<Input<Vector<int, PTR>>> rows;
    Output<Vector<int>> sums;
    Input<unsigned> size;
    InOut<int> total;

   public:
    bool compute(unsigned worker) {
      for (unsigned r = worker; r < rows.size(); r += MultiVertex::numWorkers()) {
        int s = 0;
        for (unsigned i = 0; i < size; ++i) s += rows[r][i];
        sums[r] = s;
        total += s;
      }
      return total >= s_();
    }
    static int s_() { return 0; }
  };
)cpp";

std::shared_ptr<const Library> library() {
  folder().write("scale.h", "#define SCALE 2.0f\n");
  return Library::open(folder().write("vertices.cpp", kVertices), "");
}

}  // namespace

TEST_CASE("vertices are found in text") {
  Found f = scan(R"(# 1 "a.cpp"
namespace ns::in { namespace {
struct Base : poplar::Vertex { Input<Vector<float, L(1 < 2)>> a, b; static int n; using T = int; };
class V final : public Base { public: V(); const unsigned c = f(1, 2); int d[4], e{3}; bool compute() { int x; } };
enum class E { A };
template <> class W<float> : public poplar::MultiVertex { Output<Vector<Vector<int>>> z; };
template <class T, int N = (2 > 1)> class W : public Vertex { T w; };
template class W<unsigned int, 3u>;
template <typename T> struct Unused : Vertex {};
} }
class Plain { int a; };
# 3 "/usr/include/x.h" 1 3
class System : Vertex { int a; };
# 20 "a.cpp" 2
class Last : Vertex { void f() const { urand(); } typedef int i2 __attribute__((vector_size(8))); public: int one; [[maybe_unused]] alignas(8) int last; };
)");
  REQUIRE(f.vertices.size() == 5);
  CHECK(f.vertices[1].name == "ns::in::V");
  CHECK(f.vertices[1].scope == std::vector<std::string>{"ns", "in", ""});
  CHECK(f.vertices[1].fields == std::vector<std::string>{"a", "b", "c", "d", "e"});
  CHECK(f.vertices[1].constructor);
  CHECK(f.vertices[2].name == "ns::in::W<float>");
  CHECK(f.vertices[2].fields == std::vector<std::string>{"z"});
  CHECK(f.vertices[3].fields == std::vector<std::string>{"one", "last"});
  CHECK(f.vertices[4].written == "W<unsigned int,3u>");
  CHECK(f.templates == std::vector<std::string>{"Unused"});
  CHECK(f.files == std::vector<std::string>{"a.cpp"});
  CHECK(f.random);
  // Text that makes no sense ends the search, not the program.
  for (const char* broken :
       {"template <", "class", "struct V : Vertex {", "namespace {", "}", "class V : Vertex { int",
        "template class", "# \"", "\"", "class V : Vertex { a(", "enum", "template < > class V <"})
    CHECK_NOTHROW(scan(broken));
}

TEST_CASE("names of vertices in one form") {
  CHECK(canonical_name("V<unsigned int, 2u, ns::E::A>") == "V<unsigned,2,ns::E::A>");
  CHECK(canonical_name("::ns::V< std::uint16_t,poplar::half >") == "ns::V<unsigned short,half>");
  CHECK(bare_name("ns::V<ns::E::A,true>") == "V<A,true>");
}

TEST_CASE("a vertex per element, in float and half") {
  auto lib = library();
  ComputeSets sets;
  sets.add(lib);
  for (int threads : {1, 2, 3}) {
    for (size_t shift : {size_t{0}, size_t{4}}) {
      int64_t cs = sets.add_set("distance");
      std::vector<float> a, b;
      for (int i = 0; i < 3 * 5; ++i) a.push_back(static_cast<float>(i) * 0.5f);
      for (int i = 0; i < 2 * 5; ++i) b.push_back(static_cast<float>(7 - i));
      std::vector<Tensor> v = {Tensor::of(TESSERA_F32, a), Tensor::of(TESSERA_F32, b),
                               Tensor::of(TESSERA_F32, std::vector<float>(7, -1.0f))};
      for (uint64_t i = 0; i < 3; ++i)
        for (uint64_t j = 0; j < 2; ++j) {
          int64_t x = sets.add_vertex(cs, "L1<float>");
          sets.connect(x, "a", -1, kFloat, {{{0, i * 5, 5}}}, 5);
          sets.connect(x, "b", -1, kFloat, {{{1, j * 5, 2}, {1, j * 5 + 2, 3}}}, 5);
          sets.connect(x, "out", -1, kFloat, {{{2, i * 2 + j, 1}}}, -1);
          int64_t one = 1;
          sets.set_value(x, "skip", -1, {nullptr, &one, 1});
        }
      execute(sets, cs, v, threads, shift);
      std::vector<float> out = v[2].values<float>();
      for (size_t i = 0; i < 3; ++i)
        for (size_t j = 0; j < 2; ++j) {
          float expected = 0;
          for (size_t k = 1; k < 5; ++k) expected += std::abs(a[i * 5 + k] - b[j * 5 + k]);
          CHECK(out[i * 2 + j] == expected);
        }
      CHECK(out[6] == -1.0f);  // nobody's element stays
    }
  }
  // 2048 + 1 + 1 in half is 2048: every operation rounds.
  int64_t cs = sets.add_set("half");
  std::vector<uint16_t> a = {0, 0x6800, 0x3c00, 0x3c00}, zero(4, 0);
  std::vector<Tensor> v = {Tensor::of(TESSERA_F16, a), Tensor::of(TESSERA_F16, zero),
                           Tensor::of(TESSERA_F32, std::vector<float>(1, 0.0f))};
  int64_t x = sets.add_vertex(cs, "L1< half >");
  sets.connect(x, "a", -1, kHalf, {{{0, 0, 4}}}, 4);
  sets.connect(x, "b", -1, kHalf, {{{1, 0, 4}}}, 4);
  sets.connect(x, "out", -1, kFloat, {{{2, 0, 1}}}, -1);
  execute(sets, cs, v, 2);
  CHECK(v[2].values<float>()[0] == 2048.0f);
}

TEST_CASE("state, enum templates, pieces that are gathered and written back") {
  ComputeSets sets;
  sets.add(library());
  int64_t cs = sets.add_set("");
  std::vector<float> x(12, 1.0f), y = {0, 10, 20};
  std::vector<Tensor> v = {Tensor::of(TESSERA_F32, x), Tensor::of(TESSERA_F32, y)};
  int64_t a = sets.add_vertex(cs, "acme::Step<acme::Mode::Double,2>");
  int64_t b = sets.add_vertex(cs, "Step<Mode::Halve,1>");
  sets.connect(a, "x", -1, kFloat, {{{0, 0, 2}, {0, 4, 1}, {0, 8, 4}}}, 7);
  sets.connect(a, "y", -1, kFloat, {{{1, 2, 1}, {1, 0, 1}}}, 2);
  int64_t table[] = {100, 200}, fixed[] = {7, 1000};
  sets.set_value(a, "table", -1, {nullptr, table, 2});
  sets.set_value(a, "fixed", -1, {nullptr, fixed, 2});
  sets.connect(b, "x", -1, kFloat, {{{0, 5, 3}}}, 3);
  sets.connect(b, "y", -1, kFloat, {{}}, 0);
  double by = 4.0;
  sets.set_value(b, "by", -1, {&by, nullptr, 1});
  execute(sets, cs, v, 2);
  CHECK(v[0].values<float>() == std::vector<float>{4, 4, 1, 1, 4, 0.25f, 0.25f, 0.25f, 4, 4, 4, 4});
  CHECK(v[1].values<float>() == std::vector<float>{1200, 10, 1120});
}

TEST_CASE("multi vertices and lists of vectors") {
  ComputeSets sets;
  sets.add(library());
  std::vector<int> data;
  for (int i = 0; i < 24; ++i) data.push_back(i);
  for (bool cut : {true, false}) {
    int64_t cs = sets.add_set("share");
    std::vector<Tensor> v = {Tensor::of(TESSERA_I32, data),
                             Tensor::of(TESSERA_I32, std::vector<int>(8, 0)),
                             Tensor::of(TESSERA_I32, std::vector<int>{3, 50})};
    int64_t x = sets.add_vertex(cs, "Share");
    if (cut) {
      sets.connect(x, "rows", -1, kInt, {{{0, 0, 24}}}, 8);
    } else {
      sets.set_size(x, "rows", 8);
      for (int64_t r = 0; r < 8; ++r)
        sets.connect(x, "rows", r, kInt, {{{0, static_cast<uint64_t>(r) * 3, 3}}}, 3);
    }
    sets.connect(x, "sums", -1, kInt, {{{1, 0, 8}}}, 8);
    sets.connect(x, "size", -1, kUnsigned, {{{2, 0, 1}}}, -1);
    sets.connect(x, "total", -1, kInt, {{{2, 1, 1}}}, -1);
    execute(sets, cs, v, 1);
    CHECK(v[1].values<int>() == std::vector<int>{3, 12, 21, 30, 39, 48, 57, 66});
    CHECK(v[2].values<int>() == std::vector<int>{3, 326});
  }
}

TEST_CASE("what does not fit is said by name") {
  ComputeSets sets;
  int64_t cs = sets.add_set("set");
  CHECK(has(error_of([&] { sets.add_vertex(cs, "V"); }), "no codelets were added"));
  sets.add(library());
  CHECK(has(error_of([&] { sets.add_vertex(cs, "L1<int>"); }),
            "there are Share, L1<float>, L1<half>"));
  int64_t x = sets.add_vertex(cs, "L1<float>");
  CHECK(has(error_of([&] { sets.connect(x, "c", -1, kFloat, {{}}, 0); }),
            "has no field \"c\"; it has a, b, out, skip"));
  CHECK(has(error_of([&] {
              sets.connect(x, "a", -1, kHalf, {{{0, 0, 1}}}, 1);
            }),
            "is of float, the tensor of half"));
  CHECK(has(error_of([&] {
              sets.connect(x, "out", -1, kFloat, {{{0, 0, 2}}}, 2);
            }),
            "is one element, the tensor has 2"));
  CHECK(has(error_of([&] {
              sets.connect(x, "skip", -1, kUnsigned, {{{0, 0, 1}}}, 1);
            }),
            "is not an Input"));
  int64_t one = 1;
  CHECK(has(error_of([&] { sets.set_value(x, "a", -1, {nullptr, &one, 1}); }), "to be connected"));
  CHECK(has(error_of([&] { sets.set_value(x, "skip", 1, {nullptr, &one, 1}); }), "no element 1"));
  auto info = [](uint32_t) { return VariableInfo{TESSERA_F32, 4, {8}}; };
  CHECK(has(error_of([&] { sets.plan(cs, info); }),
            "field \"a\" of vertex \"L1<float>\" is not connected"));
  int64_t y = sets.add_vertex(cs, "L1<float>");
  for (int64_t v : {x, y}) {
    sets.connect(v, "a", -1, kFloat, {{{0, 0, 2}}}, 2);
    sets.connect(v, "b", -1, kFloat, {{{0, 0, 2}}}, 2);
    sets.connect(v, "out", -1, kFloat, {{{1, 0, 1}}}, 1);
  }
  CHECK(has(error_of([&] { sets.plan(cs, info); }), "write the same element"));
}

TEST_CASE("files that cannot be compiled") {
  const Folder& f = folder();
  CHECK(
      has(error_of([&] { Library::open(f.write("bad.cpp", "int f() { return nothing; }\n"), ""); }),
          "was not declared in this scope"));
  CHECK(has(error_of([&] { Library::open(f.write("bad2.cpp", "#include \"missing.h\"\n"), ""); }),
            "missing.h"));
  CHECK(has(error_of([&] { Library::open((f.path / "none.cpp").string(), ""); }),
            "there is no file"));
  CHECK(has(error_of([&] { Library::open("x.gp", ""); }), "C++ file that they were compiled from"));
  CHECK(has(error_of([&] { Library::open("x.S", ""); }), "assembly"));
  CHECK(has(error_of([&] { Library::open("x.o", ""); }), "compiled code"));
  setenv("CXX", "no-such-compiler", 1);
  CHECK(has(error_of([&] { Library::open(f.write("good.cpp", "int x;\n"), ""); }),
            "no-such-compiler"));
  unsetenv("CXX");
}

TEST_CASE("compiled codelets are kept, and made anew when text, headers or flags change") {
  const Folder& f = folder();
  auto count = [&] {
    int n = 0;
    for (const auto& e : fs::directory_iterator(f.path / "tessera" / "codelets"))
      n += e.path().extension() == ".so";
    return n;
  };
  const char* text =
      "#include \"k.h\"\n#include <poplar/Vertex.hpp>\n"
      "struct K : poplar::Vertex { poplar::Output<int> o; void compute() { o = K0 + EXTRA; } };\n";
  f.write("k.h", "#define K0 1\n#ifndef EXTRA\n#define EXTRA 0\n#endif\n");
  std::string path = f.write("k.cpp", text);
  auto first = Library::open(path, "");
  int n = count();
  CHECK(Library::open(path, "") == first);
  CHECK(count() == n);
  CHECK(Library::open(path, "-DEXTRA=3") != first);
  CHECK(count() == n + 1);
  f.write("k.h", "#define K0 22\n#define EXTRA 0\n");
  auto second = Library::open(path, "");
  CHECK(second != first);
  ComputeSets sets;
  sets.add(second);
  int64_t cs = sets.add_set("k");
  sets.connect(sets.add_vertex(cs, "K"), "o", -1, kInt, {{{0, 0, 1}}}, -1);
  std::vector<Tensor> v = {Tensor::of(TESSERA_I32, std::vector<int>{0})};
  execute(sets, cs, v, 1);
  CHECK(v[0].values<int>()[0] == 22);
}

TEST_CASE("lists in one field, supervisors, and random numbers on any number of threads") {
  std::string path = folder().write("more.cpp", R"cpp(
#include <ipu_builtins.h>
#include <poplar/Vertex.hpp>
    using namespace poplar;
    class Sums : public SupervisorVertex {
     public:
      Input<VectorList<int, VectorListLayout::DELTAN>> rows;
      Output<Vector<int>> out;
      bool compute() {
        for (unsigned r = 0; r < rows.size(); ++r) {
          out[r] = 0;
          for (unsigned i = 0; i < rows[r].size(); ++i) out[r] += rows[r][i];
        }
        return true;
      }
    };
    struct Draw : Vertex {
      Output<unsigned> out;
      void compute() { *out = __builtin_ipu_urand32(); }
    };
  )cpp");
  ComputeSets sets;
  sets.add(Library::open(path, ""));
  int64_t cs = sets.add_set("sums");
  std::vector<Tensor> v = {Tensor::of(TESSERA_I32, std::vector<int>{1, 2, 3, 4, 5, 6}),
                           Tensor::of(TESSERA_I32, std::vector<int>(3, 0))};
  int64_t x = sets.add_vertex(cs, "Sums");
  sets.connect(x, "rows", -1, kInt, {{{0, 0, 1}}, {{0, 1, 2}}, {{0, 3, 3}}}, -1);
  sets.connect(x, "out", -1, kInt, {{{1, 0, 3}}}, 3);
  execute(sets, cs, v, 1);
  CHECK(v[1].values<int>() == std::vector<int>{1, 5, 15});

  int64_t draws = sets.add_set("draws");
  for (uint64_t i = 0; i < 20; ++i)
    sets.connect(sets.add_vertex(draws, "Draw"), "out", -1, kUnsigned, {{{0, i, 1}}}, -1);
  std::vector<std::vector<int>> found;
  for (int threads : {1, 2, 3}) {
    std::vector<Tensor> y = {Tensor::of(TESSERA_I32, std::vector<int>(20, 0))};
    execute(sets, draws, y, threads);
    found.push_back(y[0].values<int>());
  }
  CHECK(found[0] == found[1]);
  CHECK(found[0] == found[2]);
  std::vector<Tensor> other = {Tensor::of(TESSERA_I32, std::vector<int>(20, 0))};
  execute(sets, draws, other, 2, 0, {1, 3});
  CHECK(found[0] != other[0].values<int>());
  std::sort(found[0].begin(), found[0].end());
  CHECK(std::adjacent_find(found[0].begin(), found[0].end()) == found[0].end());
}
