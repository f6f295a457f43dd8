#include "base/log.h"

#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <memory>

#include "base/error.h"
#include "base/text.h"

namespace glyd::log {
namespace {

spdlog::level::level_enum to_spdlog(Level level) {
  switch (level) {
    case Level::Debug:
      return spdlog::level::debug;
    case Level::Info:
      return spdlog::level::info;
    case Level::Warning:
      return spdlog::level::warn;
    case Level::Error:
      return spdlog::level::err;
    case Level::Off:
      break;
  }
  return spdlog::level::off;
}

// stderr shows plain lines, with a word in front where something is wrong.
class PlainFormatter : public spdlog::formatter {
 public:
  void format(const spdlog::details::log_msg& message, spdlog::memory_buf_t& out) override {
    if (message.level == spdlog::level::err) append(out, "error: ");
    if (message.level == spdlog::level::warn) append(out, "warning: ");
    append(out, {message.payload.data(), message.payload.size()});
    out.push_back('\n');
  }
  std::unique_ptr<spdlog::formatter> clone() const override { return std::make_unique<PlainFormatter>(); }

 private:
  static void append(spdlog::memory_buf_t& out, std::string_view s) { out.append(s.data(), s.data() + s.size()); }
};

struct Logger {
  std::shared_ptr<spdlog::sinks::stderr_sink_mt> console = std::make_shared<spdlog::sinks::stderr_sink_mt>();
  spdlog::logger logger{"glyd", console};

  Logger() {
    console->set_formatter(std::make_unique<PlainFormatter>());
    console->set_level(spdlog::level::info);
    logger.set_level(spdlog::level::debug);
    logger.flush_on(spdlog::level::debug);
    logger.set_error_handler([](const std::string& what) {
      static std::atomic<bool> said{false};
      if (!said.exchange(true))
        std::fprintf(stderr, "warning: the log cannot be written: %s\n", printable(what).c_str());
    });
  }
};

Logger& instance() {
  static Logger logger;
  return logger;
}

}  // namespace

void set_level(Level level) { instance().console->set_level(to_spdlog(level)); }

bool enabled(Level level) { return instance().console->should_log(to_spdlog(level)); }

void set_file(const std::string& path) {
  try {
    // Opened here first, since the sink would make folders that are missing.
    std::FILE* file = std::fopen(path.c_str(), "a");
    if (!file) throw spdlog::spdlog_ex(path, errno);
    std::fclose(file);
    auto sink = std::make_shared<spdlog::sinks::basic_file_sink_mt>(path);
    sink->set_pattern("%Y-%m-%dT%H:%M:%S.%e %l %v");
    instance().logger.sinks().push_back(std::move(sink));
  } catch (const spdlog::spdlog_ex& e) {
    fail(Code::Usage, "--log-file {}: cannot be opened for writing; choose a writable path", quote(path));
  }
}

void write(Level level, std::string_view message) { instance().logger.log(to_spdlog(level), printable(message)); }

}  // namespace glyd::log
