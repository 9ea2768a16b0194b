// SPDX-License-Identifier: Apache-2.0
// Where the values of a graph come from: its inputs, its constants, and the states that stay from
// step to step. What a state is for is its kind; its name is for the user alone.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "ir/types.h"

namespace tessera {

using ValueId = int32_t;

// Whom a state belongs to: to nobody else, to a parameter, to a parameter group of the optimizer,
// or to one of these two.
enum class Owner : uint8_t { kNone, kParam, kGroup, kEither };

//  kind          text            owner    a step may write it
#define TESSERA_SOURCE_KINDS(ROW)                                                                 \
  ROW(Param, "param", kNone, true)              /* a parameter of the model */                    \
  ROW(Buffer, "buffer", kNone, true)            /* a buffer of the model */                       \
  ROW(Const, "const", kNone, false)             /* given with the text, never changes */          \
  ROW(Input, "input", kNone, false)             /* of a call; no state */                         \
  ROW(Random, "random", kNone, false)           /* seed and counter, which the engine advances */ \
  ROW(Hyper, "hyper", kGroup, false)            /* values of a group, by slot */                  \
  ROW(Optimizer, "optimizer", kEither, true)    /* what a rule keeps, such as a momentum */       \
  ROW(Accumulator, "accumulator", kParam, true) /* of gradients */                                \
  ROW(MicroCount, "micro_count", kNone, true)   /* micro-batches accumulated before this one */   \
  ROW(LossScale, "loss_scale", kNone, true)     /* what the loss's gradient is multiplied by */   \
  ROW(LossSteps, "loss_steps", kNone, true)     /* since the loss scale was last adjusted */

enum class SourceKind : uint8_t {
#define ROW(name, text, owner, written) k##name,
  TESSERA_SOURCE_KINDS(ROW)
#undef ROW
};

// Values of a parameter group: `hyper` states have so many slots.
constexpr int64_t kHyperSlots = 16;

struct Source {
  SourceKind kind = SourceKind::kInput;
  ValueId value = -1;
  std::string name;
  std::string param = {};  // that it belongs to, by name: a task may have the one without the other
  int group = -1;          // that it belongs to
};

std::string_view text_of(SourceKind kind);
std::optional<SourceKind> source_kind(std::string_view text);
Owner owner_of(SourceKind kind);
bool may_be_written(SourceKind kind);
// A parameter, a buffer or a constant.
bool is_of_the_model(SourceKind kind);

// Empty if a state of this kind may have this type, else the types that it may have.
std::string_view missing_type(SourceKind kind, const TensorType& type);

// What the user sees: "momentum:fc.weight", "step:0", "fc.weight".
std::string state_name(const Source& s);
// Equal for two sources if they are the same state: a name of the model may look like one of ours.
std::string state_key(const Source& s);

}  // namespace tessera
