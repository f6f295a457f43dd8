// glyd-pack: a packed directory of a model, the original of it again, or what packing would give.

#include <fmt/format.h>
#include <signal.h>

#include "base/error.h"
#include "base/log.h"
#include "base/progress.h"
#include "base/text.h"
#include "base/thread_pool.h"
#include "base/timing.h"
#include "commands.h"
#include "common.h"
#include "io/hub_cache.h"
#include "io/json.h"
#include "model/checkpoint.h"
#include "model/packing.h"
#include "pack_options.h"

namespace glyd::tools {
namespace {

using io::OrderedJson;
using model::PackReport;

// Hands progress on, and ends the work at a Ctrl-C: what was begun is removed on the way out.
class Interruptible : public Progress {
 public:
  explicit Interruptible(Progress& shown) : shown_(shown) {}
  void begin(const std::string& label, std::uint64_t bytes) override { shown_.begin(label, bytes); }
  void advance(std::uint64_t bytes) override {
    if (interrupted()) fail(Code::Interrupted, "interrupted; nothing was left behind");
    shown_.advance(bytes);
  }
  void end() override {
    advance(0);
    shown_.end();
  }

 private:
  Progress& shown_;
};

// A request to terminate and a terminal that goes away are treated like Ctrl-C, unless nohup had the latter ignored; a
// file that outgrows its limit is an error of write().
void prepare_signals() {
  struct sigaction action {};
  ::sigaction(SIGINT, nullptr, &action);
  ::sigaction(SIGTERM, &action, nullptr);
  struct sigaction hangup {};
  ::sigaction(SIGHUP, nullptr, &hangup);
  if (hangup.sa_handler != SIG_IGN) ::sigaction(SIGHUP, &action, nullptr);
  ::signal(SIGXFSZ, SIG_IGN);
}

void set_up_log(const PackOptions& o) {
  if (o.verbose) log::set_level(log::Level::Debug);
  if (o.quiet) log::set_level(log::Level::Warning);
  if (o.log_file) log::set_file(*o.log_file);
}

double share(std::uint64_t part, std::uint64_t whole) {
  return whole == 0 ? 0 : 100.0 * static_cast<double>(part) / static_cast<double>(whole);
}

OrderedJson class_json(const PackReport::Class& c) {
  return {{"class", c.name},
          {"tensors", c.tensors},
          {"packed", c.packed},
          {"weights", c.weights},
          {"bytes_before", c.bytes_before},
          {"bytes_after", c.bytes_after},
          {"bits_per_weight", c.bits_a_weight()},
          {"exceptions", c.exceptions}};
}

OrderedJson report_json(const PackReport& report) {
  OrderedJson classes = OrderedJson::array();
  for (const PackReport::Class& c : report.classes) classes.push_back(class_json(c));
  return {{"bytes_before", report.bytes_before()},
          {"bytes_after", report.bytes_after()},
          {"matrices", class_json(report.total())},
          {"classes", classes}};
}

std::string table_row(const PackReport::Class& c) {
  return fmt::format("{:<10} {:>5} {:>6} {:>16} {:>12} {:>12} {:>7.3f} {:>12}\n", c.name, c.tensors, c.packed,
                     with_commas(c.weights), in_bytes(c.bytes_before), in_bytes(c.bytes_after), c.bits_a_weight(),
                     with_commas(c.exceptions));
}

std::string report_table(const PackReport& report) {
  std::string table = fmt::format("{:<10} {:>5} {:>6} {:>16} {:>12} {:>12} {:>7} {:>12}\n", "tensors", "count",
                                  "packed", "weights", "before", "after", "bits", "exceptions");
  for (const PackReport::Class& c : report.classes) {
    if (c.tensors > 0) table += table_row(c);
  }
  return table + table_row(report.total());
}

std::string summary(const PackReport& report) {
  return fmt::format("{} -> {} ({:.1f} %), matrices at {:.3f} bits a weight", in_bytes(report.bytes_before()),
                     in_bytes(report.bytes_after()), share(report.bytes_after(), report.bytes_before()),
                     report.total().bits_a_weight());
}

class Work {
 public:
  explicit Work(const PackOptions& options)
      : o_(options), threads_(options.threads), progress_(options.quiet ? silent_ : console_) {}

  int run() {
    const model::Checkpoint checkpoint = model::Checkpoint::open(io::resolve_model(o_.model));
    switch (o_.mode) {
      case PackMode::DryRun:
        return dry_run(checkpoint);
      case PackMode::Verify:
        return verify(checkpoint);
      case PackMode::Unpack:
        return unpack(checkpoint);
      case PackMode::Pack:
        break;
    }
    return pack(checkpoint);
  }

 private:
  int pack(const model::Checkpoint& checkpoint) {
    const PackReport report = model::pack_model(
        checkpoint, o_.out, {o_.max_shard_bytes, o_.verify, o_.force, GLYD_VERSION}, threads_, progress_);
    log::info("packed {}{}; {}", summary(report), o_.verify ? ", verified" : "", speed(report.bytes_before()));
    log::debug("{} weight file(s)", report.files);
    OrderedJson json = report_json(report);
    json["files"] = report.files;
    json["verified"] = o_.verify;
    return finish(std::move(json));
  }

  int unpack(const model::Checkpoint& checkpoint) {
    const std::uint64_t bytes = model::unpack_model(checkpoint, o_.out, o_.force, threads_, progress_);
    log::info("unpacked {}, every checksum is that of the original; {}", in_bytes(bytes), speed(bytes));
    return finish({{"bytes", bytes}});
  }

  int verify(const model::Checkpoint& checkpoint) {
    model::verify_checksums(checkpoint, threads_, progress_);
    log::info("verified {}, every checksum is that of the original; {}", in_bytes(checkpoint.weight_bytes()),
              speed(checkpoint.weight_bytes()));
    return finish({{"verified", true}});
  }

  int dry_run(const model::Checkpoint& checkpoint) {
    const PackReport report = model::measure_packing(checkpoint, threads_, progress_);
    if (!o_.json) print(report_table(report) + "\n" + summary(report) + "\n");
    return finish(report_json(report));
  }

  double seconds() const { return seconds_since(start_); }

  std::string speed(std::uint64_t bytes) const {
    return fmt::format("{:.1f} s, {:.0f} MB/s", seconds(), static_cast<double>(bytes) / 1e6 / seconds());
  }

  int finish(OrderedJson json) {
    json["seconds"] = seconds();
    if (o_.json) print(json.dump(2) + "\n");
    return 0;
  }

  const PackOptions& o_;
  ThreadPool threads_;
  Progress silent_;
  ConsoleProgress console_;
  Interruptible progress_;
  const Clock::time_point start_ = Clock::now();
};

}  // namespace

int pack_command(const std::vector<std::string>& args) {
  const auto options = parse_pack_options(args);
  if (!options) return 0;  // --help or --version
  set_up_log(*options);
  prepare_signals();
  const InterruptScope scope;
  return Work(*options).run();
}

}  // namespace glyd::tools
