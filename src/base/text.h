#pragma once
// Bytes that came from a file or a command line, made fit to print; UTF-8 checks.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace glyd {

// Length in bytes of the longest prefix of `s` that is well-formed UTF-8 (no surrogates, no overlong forms).
std::size_t valid_utf8_prefix(std::string_view s);

inline bool is_valid_utf8(std::string_view s) { return valid_utf8_prefix(s) == s.size(); }

// What is wrong with `s`, to stand behind its name in a message: " is not UTF-8: byte 3 is 0xff". Empty: it is UTF-8.
std::string utf8_fault(std::string_view s);

// Appends code point `cp` (a Unicode scalar value) to `out` as UTF-8.
void append_utf8(std::string& out, char32_t cp);

// `s` with every malformed sequence replaced by U+FFFD, one for each maximal subpart (Unicode 3.9, table 3-8).
std::string to_valid_utf8(std::string_view s);

// `s` as one printable line: control characters (C0, C1, DEL, line separators, bidirectional overrides) and malformed
// UTF-8 are written as \n, \xNN or \u{NNNN}.
std::string printable(std::string_view s);

// printable(s) in single quotes, shortened in the middle to about `max_bytes`: how a name from a file is put in a
// message.
std::string quote(std::string_view s, std::size_t max_bytes = 120);

}  // namespace glyd
