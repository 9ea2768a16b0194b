// SPDX-License-Identifier: Apache-2.0
// Loops and branches of a recorded program. The body of one is written as a graph of its own, in
// which variables have values of their own: those that it writes are its results, and what it reads
// of the others comes in.
#include <set>
#include <utility>

#include "custom/compat/compose.h"

namespace tessera::compat {

namespace {

using Values = std::vector<Value>;

std::string refs(const Values& some) {
  std::string s;
  for (const Value& v : some) s += (s.empty() ? "" : ", ") + Writer::ref(v);
  return "[" + s + "]";
}

Values picked(const Values& values, const std::vector<int>& variables) {
  Values out;
  for (int v : variables) out.push_back(values[v]);
  return out;
}

}  // namespace

// Does `work` while the body is what is being written.
template <typename F>
void Composer::within(Frame& body, const F& work) {
  Frame& self = *this;
  std::swap(self, body);
  ++depth_;
  work();
  --depth_;
  std::swap(self, body);
}

// A body may have no use for some of its inputs.
Values Composer::inputs_of(Frame& body, const std::vector<int>& variables) const {
  Values out;
  for (int v : variables) {
    Value& in = body.inputs[v];
    if (!in.there()) in = body.w.input(r_.variables[v].type, r_.variables[v].shape);
    out.push_back(in);
  }
  return out;
}

Values Composer::values_of(const std::vector<int>& variables) {
  Values out;
  for (int v : variables) out.push_back(w.cast(current(r_.variables[v]), r_.variables[v].type));
  return out;
}

// The predicate of a program as a bool[].
Value Composer::test(const tessera_program& p) {
  if (p.predicate->elements != 1)
    fail(std::string(p.kind == TESSERA_IF ? "If" : "RepeatWhile") +
         ": the predicate has more than one element");
  const Value x = w.reshape(read(view_of(p.predicate)), {});
  const bool wanted = p.kind == TESSERA_IF || p.until != 0;
  if (x.type == BOOL && wanted) return x;
  return w.node(wanted ? "ne" : "eq", Writer::ref(x) + ", 0", BOOL, {});
}

// The loop around a body that is written: of `count` turns, or for as long as the flag says.
void Composer::loop(Frame& body, int64_t count, const Flag* flag) {
  std::vector<int> carries, captures;
  for (size_t v = 0; v < body.written.size(); ++v)
    if (body.written[v]) carries.push_back(static_cast<int>(v));
  for (const auto& [v, in] : body.inputs)
    if (!body.written[v]) captures.push_back(v);
  if (carries.empty()) return;  // nobody can tell how often it ran
  Values start = values_of(carries), in = inputs_of(body, carries);
  Values out = picked(body.values, carries);
  if (flag) {
    start.insert(start.begin(), flag->go);
    in.insert(in.begin(), flag->given);
    out.insert(out.begin(), flag->next);
  }
  const Values held = values_of(captures), read = inputs_of(body, captures);
  in.insert(in.end(), read.begin(), read.end());
  const std::string lists = refs(start) + (flag ? ", " : ", [], ") + refs(held);
  const Values made = w.nodes(flag ? "while" : "scan",
                              flag ? lists : std::to_string(count) + ", " + lists + ", false",
                              start, body.w.body(in, out));
  const size_t first = flag ? 1 : 0;
  for (size_t i = 0; i < carries.size(); ++i) set(r_.variables[carries[i]], made[first + i]);
}

void Composer::repeat(const tessera_program& p) {
  if (p.count <= 0) return;
  Frame body(values.size());
  within(body, [&] { run(*p.children[0]); });
  loop(body, p.count, nullptr);
}

void Composer::repeat_while(const tessera_program& p) {
  run(*p.children[0]);
  Flag flag;
  flag.go = test(p);
  Frame body(values.size());
  within(body, [&] {
    flag.given = w.input(BOOL, {});
    run(*p.children[1]);
    run(*p.children[0]);
    flag.next = test(p);
  });
  loop(body, 0, &flag);
}

void Composer::branch(const tessera_program& p) {
  const Value condition = test(p);
  Frame ways[2] = {Frame(values.size()), Frame(values.size())};
  for (int i = 0; i < 2; ++i) within(ways[i], [&] { run(*p.children[i]); });
  std::vector<int> results;
  for (size_t v = 0; v < values.size(); ++v)
    if (ways[0].written[v] || ways[1].written[v]) results.push_back(static_cast<int>(v));
  if (results.empty()) return;
  Values out[2];
  std::set<int> read;
  for (int i = 0; i < 2; ++i) {
    within(ways[i], [&] { out[i] = values_of(results); });
    for (const auto& in : ways[i].inputs) read.insert(in.first);
  }
  const std::vector<int> operands(read.begin(), read.end());
  std::string bodies;
  for (int i = 0; i < 2; ++i) bodies += ways[i].w.body(inputs_of(ways[i], operands), out[i]);
  const Values given = values_of(operands);
  const Values made =
      w.nodes("branch", Writer::ref(condition) + ", " + refs(given), out[0], bodies);
  for (size_t i = 0; i < results.size(); ++i) set(r_.variables[results[i]], made[i]);
}

}  // namespace tessera::compat
