// glyd-bench: how fast a model runs, packed and plain weights by turns.

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <ctime>
#include <list>
#include <memory>

#include "base/error.h"
#include "base/log.h"
#include "base/progress.h"
#include "base/text.h"
#include "bench_options.h"
#include "bench_record.h"
#include "bench_report.h"
#include "bench_series.h"
#include "commands.h"
#include "common.h"
#include "io/hub_cache.h"

namespace glyd::tools {
namespace {

// What is being measured, on one line of the terminal that is drawn over; a message a point elsewhere.
class Status {
 public:
  explicit Status(bool quiet) : quiet_(quiet), terminal_(::isatty(STDERR_FILENO) == 1) {}
  ~Status() { clear(); }
  Status(const Status&) = delete;
  Status& operator=(const Status&) = delete;

  void point(const std::string& text) {
    if (!quiet_ && !terminal_) log::info("{}", text);
  }
  void run(const std::string& text) {
    if (quiet_ || !terminal_) return;
    std::fprintf(stderr, "\r%s\x1b[K", text.c_str());
    drawn_ = true;
  }
  void clear() {
    if (drawn_) std::fputs("\r\x1b[K", stderr);
    drawn_ = false;
  }

 private:
  const bool quiet_, terminal_;
  bool drawn_ = false;
};

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  char text[32];
  return {text, std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts)};
}

class Bench {
 public:
  explicit Bench(const BenchOptions& options)
      : o_(options), model_(io::resolve_model(options.model), options.random_weights), status_(options.quiet) {
    record_.options = options;
    record_.date = utc_now();
    record_.config = model_.config;
    record_.parameters = model_.parameters();
    if (model_.checkpoint && options.context() > model_.config.max_positions) {
      log::warning("sequences of {} tokens: the model was made for {}", options.context(), model_.config.max_positions);
    }
  }

  void run() {
    make_series();
    look_at_device();
    plan();
    record_.by_turns ? by_turns() : one_after_the_other();
    record_.process_memory = peak_memory();
    measure_bandwidth();
    status_.clear();
    print(bench_report(record_));
  }

 private:
  void make_series() {
    std::vector<runner::WeightFormat> weights = o_.weights;
    if (weights.empty()) {
      const bool packed = model_.checkpoint && model_.checkpoint->manifest();
      weights.push_back(packed ? runner::WeightFormat::Packed : runner::WeightFormat::Bf16);
    }
    for (const runner::WeightFormat format : weights) {
      for (const runner::Gemm gemm : o_.gemms) {
        if (gemm == runner::Gemm::Cublas && format == runner::WeightFormat::Packed) continue;
        SeriesRecord& series = record_.series.emplace_back();
        series.weights = format;
        series.gemm = gemm;
      }
    }
    if (record_.series.empty())
      fail(Code::Usage, "--gemm cublas: multiplies plain weights alone; add bf16 to --weights");
  }

  void look_at_device() {
    const auto runner = runner::make_runner(o_.device.runner_options());
    record_.device = runner->device_name();
    record_.device_facts = runner->device_facts();
    record_.chunk = runner->preferred_chunk();
    if (!o_.device.device_named) log::info("device: {}", record_.device);
  }

  // When all weights are gone, so that it finds memory to read.
  void measure_bandwidth() {
    status_.run("measuring the read bandwidth");
    series_.clear();
    record_.read_bandwidth = runner::make_runner(o_.device.runner_options())->read_bandwidth();
  }

  // Decides which series run, and whether all at once. Throws Error(Memory) when none fits.
  void plan() {
    std::uint64_t together = 0, available = 0;
    for (SeriesRecord& record : record_.series) {
      BenchSeries series(model_, o_, record_.chunk, record);
      if (series.plan()) {
        together += record.plan.total();
        available = record.plan.available;
        series_.push_back(std::move(series));
      } else if (series_.empty() && &record == &record_.series.back()) {
        fail(Code::Memory, "{}: {}", record.name(), *record.refusal);
      } else {
        log::warning("{}: {}", record.name(), *record.refusal);
      }
    }
    record_.by_turns = together <= available;
    if (!record_.by_turns) {
      log::info("the series need {} together and {} are available: they run one after the other", in_bytes(together),
                in_bytes(available));
    }
  }

  void by_turns() {
    for (BenchSeries& series : series_) load(series);
    for (const std::int64_t parallel : o_.parallel) {
      for (BenchSeries& series : series_) warm_up(series, parallel);
      for (std::int64_t i = 0; i < o_.repeats; ++i) {
        for (BenchSeries& series : series_) run(series, parallel, i);
      }
    }
  }

  void one_after_the_other() {
    for (BenchSeries& series : series_) {
      load(series);
      for (const std::int64_t parallel : o_.parallel) {
        warm_up(series, parallel);
        for (std::int64_t i = 0; i < o_.repeats; ++i) run(series, parallel, i);
      }
      series.unload();
    }
  }

  void load(BenchSeries& series) {
    status_.clear();
    const std::unique_ptr<Progress> progress =
        o_.quiet ? std::make_unique<Progress>() : std::make_unique<ConsoleProgress>();
    series.load(*progress);
  }

  void warm_up(BenchSeries& series, std::int64_t parallel) {
    const std::string what = fmt::format("{}, {} at a time", series.record().name(), parallel);
    status_.point(what);
    status_.run(what + ": warming up");
    series.warm_up(parallel);
  }

  void run(BenchSeries& series, std::int64_t parallel, std::int64_t i) {
    status_.run(fmt::format("{}, {} at a time: run {} of {}", series.record().name(), parallel, i + 1, o_.repeats));
    series.run();
  }

  const BenchOptions& o_;
  const BenchModel model_;
  Status status_;
  BenchRecord record_;
  std::list<BenchSeries> series_;
};

void set_up_log(const BenchOptions& o) {
  if (o.verbose) log::set_level(log::Level::Debug);
  if (o.quiet) log::set_level(log::Level::Warning);
  if (o.log_file) log::set_file(*o.log_file);
}

}  // namespace

int bench_command(const std::vector<std::string>& args) {
  const auto options = parse_bench_options(args);
  if (!options) return 0;  // --help or --version
  set_up_log(*options);
  const InterruptScope scope;
  Bench(*options).run();
  return 0;
}

}  // namespace glyd::tools
