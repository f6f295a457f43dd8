#pragma once
// What is said where something has to fail.

#include <catch2/catch.hpp>
#include <functional>
#include <string>

#include "base/error.h"

namespace glyd::test {

// The message of the Error that `body` throws: one line, of this kind. Empty when nothing is thrown.
[[nodiscard]] inline std::string error_of(Code code, const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& e) {
    CHECK(e.code() == code);
    CHECK_THAT(e.what(), !Catch::Contains("\n"));
    return e.what();
  }
  return "";
}

}  // namespace glyd::test
