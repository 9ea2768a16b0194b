// SPDX-License-Identifier: Apache-2.0
#include "base/json.h"

#include <doctest/doctest.h>

#include <cmath>

using namespace tessera;

TEST_CASE("json: objects, arrays and numbers") {
  json::Object o;
  o.add("name", "fc").add("count", int64_t{3}).add("on", true);
  o.add("ms", 1.23456, 3).add("shape", std::vector<int64_t>{2, 3}).add("none", json::Array());
  o.add("inner", json::Object().add("size", size_t{7}));
  CHECK(json::text(o) ==
        R"({"name": "fc", "count": 3, "on": true, "ms": 1.235, "shape": [2, 3], "none": [], )"
        R"("inner": {"size": 7}})");
  CHECK(json::text(json::Object()) == "{}");
}

TEST_CASE("json: strings are escaped, numbers that are none are null") {
  CHECK(json::text("a\"b\\c\n\t\x01") == R"("a\"b\\c\u000a\u0009\u0001")");
  CHECK(json::text("für 日本 \xf0\x9f\x98\x80") == "\"für 日本 \xf0\x9f\x98\x80\"");
  CHECK(json::text("\xff"
                   "a\xc3") == R"("\ufffda\ufffd")");
  CHECK(json::text("\xed\xa0\x80") == R"("\ufffd\ufffd\ufffd")");  // half of a pair
  CHECK(json::text("\xc0\xaf") == R"("\ufffd\ufffd")");            // longer than need be
  json::Object o;
  o.add("nan", std::nan(""), 2).add("inf", -INFINITY, 2).add("key \"x\"", 0);
  CHECK(json::text(o) == R"({"nan": null, "inf": null, "key \"x\"": 0})");
}
