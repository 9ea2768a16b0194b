// SPDX-License-Identifier: Apache-2.0
// Statements that need more than their tensors: random numbers, which come from a seed, and values
// that replicas exchange.
#include "custom/compat/compose.h"

namespace tessera::compat {

// A new one for each statement that is run.
Value Composer::seed() {
  return w.node("custom",
                "\"tessera\", \"Seed\", 1, [], [[\"number\", " + std::to_string(seeds_++) + "]]",
                INT, {2});
}

// ints: what, smallest, largest, modifier; reals: numbers; in: a seed, or none
void Composer::random(const Statement& s) {
  const View& out = *s.out[0];
  Value key = s.in.empty() ? seed() : read(*s.in[0]);
  if (product(key.shape) != 2) fail("random numbers: a seed has two elements");
  key = w.bits(w.reshape(key, {2}), INT);
  const bool whole = s.ints.at(0) == TESSERA_RANDOM_INTEGER;
  Shape shape = out.dims;
  shape.insert(shape.begin(), 0);
  std::string numbers;
  for (size_t i = 0; i < 3; ++i)
    numbers += (i ? ", " : "") + number_text(i < s.reals.size() ? s.reals[i] : 0.0);
  const std::string attributes = "[[\"what\", " + std::to_string(s.ints[0]) + "], [\"shape\", " +
                                 Writer::list(shape) + "], [\"numbers\", [" + numbers +
                                 "]], [\"range\", " +
                                 Writer::list({s.ints.begin() + 1, s.ints.begin() + 4}) + "]]";
  const Value x =
      w.node("custom", "\"tessera\", \"Random\", 1, [" + Writer::ref(key) + "], " + attributes,
             whole ? static_cast<int32_t>(LONGLONG) : FLOAT, out.dims);
  write(out, w.cast(x, out.type));
}

// ints: replicas of a group, how far apart
void Composer::exchange(const Statement& s) {
  const Value x = read(*s.in[0]);
  if (s.ints.at(0) == 1) return write(*s.out[0], x);
  write(*s.out[0], w.node("exchange",
                          Writer::ref(x) + ", " + std::to_string(s.ints[0]) + ", " +
                              std::to_string(s.ints.at(1)),
                          x.type, x.shape));
}

}  // namespace tessera::compat
