// SPDX-License-Identifier: Apache-2.0
// Random numbers of compositions. custom("tessera", "Seed", 1) is a seed, i32[2], that capture
// draws from the random state of the program. custom("tessera", "Random", 1, [seed], [...]) is a
// function of the seed and its attributes alone: a gradient op or a pass that makes it again gets
// the same numbers, on any number of threads. Each element has a counter of its own (Philox).
#include <algorithm>
#include <cmath>
#include <cstring>

#include "tessera/abi.h"
#include "tessera/compat/detail/recorder.h"

namespace {

struct Words {
  uint32_t w[4];
};

// Philox 4x32 with ten rounds (Salmon and others, 2011).
Words philox(Words c, uint32_t k0, uint32_t k1) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * c.w[0], b = uint64_t{0xCD9E8D57} * c.w[2];
    c = {{static_cast<uint32_t>(b >> 32) ^ c.w[1] ^ k0, static_cast<uint32_t>(b),
          static_cast<uint32_t>(a >> 32) ^ c.w[3] ^ k1, static_cast<uint32_t>(a)}};
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  return c;
}

struct Numbers {
  int32_t what;
  uint32_t key[2], modifier;
  double a, b, limit;  // smallest and largest, or mean, deviation and how many of them
  int64_t low, high;

  Words words(int64_t i, uint32_t turn) const {
    const auto at = static_cast<uint64_t>(i);
    return philox({{static_cast<uint32_t>(at), static_cast<uint32_t>(at >> 32), modifier,
                    static_cast<uint32_t>(what) << 24 | turn}},
                  key[0], key[1]);
  }
  // In [0, 1), and of a normal distribution.
  static double unit(const Words& w) { return (w.w[0] >> 8) * 0x1p-24; }
  static double normal(const Words& w) {
    const double r = std::sqrt(-2 * std::log(((w.w[0] >> 8) + 1) * 0x1p-24));
    return r * std::cos(6.283185307179586 * w.w[1] * 0x1p-32);
  }
  float real(int64_t i) const {
    const double largest = std::nextafter(static_cast<float>(b), static_cast<float>(a));
    switch (what) {
      case TESSERA_RANDOM_UNIFORM:
        return static_cast<float>(std::min(a + (b - a) * unit(words(i, 0)), largest));
      case TESSERA_RANDOM_NORMAL:
        return static_cast<float>(a + b * normal(words(i, 0)));
      default:
        // Outside of the limits again, and at last what is nearest.
        for (uint32_t turn = 0;; ++turn) {
          const double z = normal(words(i, turn));
          if (std::abs(z) <= limit || turn == 4096)
            return static_cast<float>(a + b * std::clamp(z, -limit, limit));
        }
    }
  }
  int64_t integer(int64_t i) const {
    const Words w = words(i, 0);
    const uint64_t bits = uint64_t{w.w[0]} << 32 | w.w[1];
    const auto range = static_cast<unsigned __int128>(static_cast<uint64_t>(high - low)) + 1;
    return low + static_cast<int64_t>(static_cast<uint64_t>(range * bits >> 64));
  }
};

const int64_t* ints(const tessera_call* call, const char* name, int64_t& n) {
  return tessera_call_ints(call, name, &n);
}

int64_t kind_of(const tessera_call* call) {
  int64_t n = 0;
  const int64_t* what = ints(call, "what", n);
  return what ? *what : static_cast<int64_t>(TESSERA_RANDOM_UNIFORM);
}

void setup_random(tessera_call* call) {
  int64_t rank = 0, numbers = 0, range = 0;
  const int64_t* shape = ints(call, "shape", rank);
  tessera_call_floats(call, "numbers", &numbers);
  ints(call, "range", range);
  const tessera_type* seed = tessera_call_input(call, 0);
  if (!shape || numbers != 3 || range != 3 || !seed || seed->dtype != TESSERA_I32 ||
      seed->rank != 1 || seed->shape[0] != 2)
    return tessera_fail(call, "Random: a seed i32[2], `shape`, `numbers` and `range`");
  const bool whole = kind_of(call) == TESSERA_RANDOM_INTEGER;
  // The first entry only says that it is a list, also for a tensor without dims.
  tessera_call_set_output(call, 0, whole ? TESSERA_I64 : TESSERA_F32,
                          static_cast<int32_t>(rank) - 1, shape + 1);
}

void compute_random(const tessera_run* run) {
  int64_t n = 0;
  const float* numbers = tessera_call_floats(run->call, "numbers", &n);
  const int64_t* range = ints(run->call, "range", n);
  const auto* seed = static_cast<const int32_t*>(run->inputs[0]);
  const Numbers x{static_cast<int32_t>(kind_of(run->call)),
                  {static_cast<uint32_t>(seed[0]), static_cast<uint32_t>(seed[1])},
                  static_cast<uint32_t>(range[2]),
                  numbers[0],
                  numbers[1],
                  numbers[2],
                  range[0],
                  range[1]};
  const tessera_type* type = tessera_call_output(run->call, 0);
  int64_t count = 1;
  for (int32_t d = 0; d < type->rank; ++d) count *= type->shape[d];
  const int64_t begin = count * run->thread / run->threads;
  const int64_t end = count * (run->thread + 1) / run->threads;
  if (x.what == TESSERA_RANDOM_INTEGER)
    for (int64_t i = begin; i < end; ++i) static_cast<int64_t*>(run->outputs[0])[i] = x.integer(i);
  else
    for (int64_t i = begin; i < end; ++i) static_cast<float*>(run->outputs[0])[i] = x.real(i);
}

void setup_seed(tessera_call* call) {
  const int64_t two = 2;
  tessera_call_set_output(call, 0, TESSERA_I32, 1, &two);
}

void compute_seed(const tessera_run* run) {
  run->fail(run, "a seed is drawn while a model is captured");
}

int add(const char* name, void (*setup)(tessera_call*), void (*compute)(const tessera_run*)) {
  tessera_op op{};
  op.size = sizeof op;
  op.abi = TESSERA_OPS_ABI;
  op.domain = "tessera";
  op.name = name;
  op.version = 1;
  op.setup = setup;
  op.compute = compute;
  return tessera_register_op(&op);
}

const int registered =
    add("Random", setup_random, compute_random) + add("Seed", setup_seed, compute_seed);

}  // namespace
