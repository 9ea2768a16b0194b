// SPDX-License-Identifier: Apache-2.0
#include "executable/bytes.h"

#include <cstring>

namespace tessera {
namespace {

constexpr int kMostDepth = 64;

void append_number(std::string& out, uint64_t v) {
  for (; v >= 0x80; v >>= 7) out += static_cast<char>(v | 0x80);
  out += static_cast<char>(v);
}

}  // namespace

void Writer::number(uint64_t v) {
  append_number(out_, v);
}

void Writer::integer(int64_t v) {
  number(static_cast<uint64_t>(v) << 1 ^ static_cast<uint64_t>(v >> 63));
}

void Writer::real(double v) {
  char raw[sizeof v];
  std::memcpy(raw, &v, sizeof v);
  out_.append(raw, sizeof v);
}

void Writer::text(std::string_view s) {
  auto [at, is_new] = known_.try_emplace(std::string(s), texts_.size());
  if (is_new) texts_.emplace_back(s);
  number(at->second);
}

void Writer::arg(const Arg& a) {
  number(static_cast<uint64_t>(a.kind));
  switch (a.kind) {
    case Arg::Kind::kNone:
      return;
    case Arg::Kind::kFloat:
      return real(a.f);
    case Arg::Kind::kString:
      return text(a.s);
    case Arg::Kind::kList:
      return list(a.list, [&](const Arg& item) { arg(item); });
    default:
      return integer(a.i);
  }
}

std::string Writer::take() {
  std::string out;
  append_number(out, texts_.size());
  for (const std::string& s : texts_) {
    append_number(out, s.size());
    out += s;
  }
  return out + out_;
}

Reader::Reader(Bytes bytes) : bytes_(bytes) {
  const size_t texts = count();
  for (size_t i = 0; i < texts; ++i) {
    const size_t size = count();
    texts_.emplace_back(text_of(bytes_.subspan(at_, size)));
    at_ += size;
  }
}

uint64_t Reader::number() {
  uint64_t v = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    sound(at_ < bytes_.size(), "it ends in the middle of a number");
    const auto b = static_cast<uint64_t>(bytes_[at_++]);
    sound(shift < 63 || b < 2, "a number is too long");
    v |= (b & 0x7f) << shift;
    if (b < 0x80) return v;
  }
  throw Damaged("a number is too long");
}

uint64_t Reader::number(uint64_t end, const char* what) {
  const uint64_t v = number();
  sound(v < end, "{} {} is not below {}", what, v, end);
  return v;
}

int64_t Reader::integer() {
  const uint64_t v = number();
  return static_cast<int64_t>(v >> 1 ^ (~(v & 1) + 1));
}

int64_t Reader::integer(int64_t low, int64_t high, const char* what) {
  const int64_t v = integer();
  sound(v >= low && v <= high, "{} {} is not from {} to {}", what, v, low, high);
  return v;
}

double Reader::real() {
  sound(bytes_.size() - at_ >= sizeof(double), "it ends in the middle of a number");
  double v;
  std::memcpy(&v, bytes_.data() + at_, sizeof v);
  at_ += sizeof v;
  return v;
}

const std::string& Reader::text() {
  return texts_[number(texts_.size(), "text")];
}

size_t Reader::count() {
  const uint64_t n = number();
  sound(n <= bytes_.size() - at_, "there are {} of something, and {} bytes for them", n,
        bytes_.size() - at_);
  return n;
}

Arg Reader::arg(int depth) {
  sound(depth < kMostDepth, "arguments are nested too deeply");
  Arg a;
  a.kind = static_cast<Arg::Kind>(number(static_cast<uint64_t>(Arg::Kind::kList) + 1, "argument"));
  switch (a.kind) {
    case Arg::Kind::kNone:
      break;
    case Arg::Kind::kFloat:
      a.f = real();
      break;
    case Arg::Kind::kString:
      a.s = text();
      break;
    case Arg::Kind::kList:
      a.list = list<Arg>([&] { return arg(depth + 1); });
      break;
    case Arg::Kind::kBool:
      a.i = integer(0, 1, "bool");
      break;
    case Arg::Kind::kDType:
      a.i = integer(0, kDTypes - 1, "dtype");
      break;
    default:
      a.i = integer();
  }
  return a;
}

}  // namespace tessera
