#pragma once
// The commands of the one binary. Each takes the arguments after its name and returns the exit code; errors are thrown.

#include <string>
#include <vector>

namespace glyd::tools {

int run_command(const std::vector<std::string>& args);    // glyd-run
int pack_command(const std::vector<std::string>& args);   // glyd-pack
int bench_command(const std::vector<std::string>& args);  // glyd-bench

}  // namespace glyd::tools
