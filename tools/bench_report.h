#pragma once
// The record of a benchmark as text: tables for people, JSON, JSON lines or CSV for programs.

#include <string>

#include "bench_record.h"

namespace glyd::tools {

// In the format of record.options. The names of JSON's fields and CSV's columns are stable; values that were not
// measured are null, and empty in CSV.
std::string bench_report(const BenchRecord& record);

}  // namespace glyd::tools
