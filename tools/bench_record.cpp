#include "bench_record.h"

#include <cmath>

namespace glyd::tools {

std::string SeriesRecord::name() const {
  return std::string(weights_name(weights)) + (gemm == runner::Gemm::Cublas ? " cublas" : "");
}

Spread spread(const std::vector<double>& values) {
  Spread s;
  s.count = values.size();
  for (const double v : values) s.mean += v / static_cast<double>(values.size());
  if (values.size() < 2) return s;
  double squares = 0;
  for (const double v : values) squares += (v - s.mean) * (v - s.mean);
  s.deviation = std::sqrt(squares / static_cast<double>(values.size() - 1));
  return s;
}

Spread spread(const std::vector<BenchRun>& runs, double BenchRun::*member) {
  std::vector<double> values;
  for (const BenchRun& run : runs) values.push_back(run.*member);
  return spread(values);
}

}  // namespace glyd::tools
