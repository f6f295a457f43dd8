#include "base/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "base/log.h"

namespace glyd {
namespace {

constexpr auto kRedraw = std::chrono::milliseconds(100);
constexpr auto kWorthALine = std::chrono::seconds(2);
constexpr int kBarWidth = 30;

double seconds(std::chrono::steady_clock::duration d) { return std::chrono::duration<double>(d).count(); }

}  // namespace

ConsoleProgress::ConsoleProgress() : terminal_(isatty(STDERR_FILENO) == 1) {}

ConsoleProgress::~ConsoleProgress() {
  if (active_) erase();  // an exception ended the work: leave a clean line for its message
}

void ConsoleProgress::begin(const std::string& label, std::uint64_t total_bytes) {
  const std::lock_guard lock(mutex_);
  label_ = label;
  total_ = total_bytes;
  done_ = 0;
  start_ = drawn_ = Clock::now();
  active_ = true;
}

void ConsoleProgress::advance(std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  done_ += bytes;
  const auto now = Clock::now();
  if (terminal_ && now - drawn_ >= kRedraw) draw(now);
}

void ConsoleProgress::end() {
  const std::lock_guard lock(mutex_);
  if (!active_) return;
  erase();
  active_ = false;
  const auto took = Clock::now() - start_;
  if (took >= kWorthALine) {
    log::info("{}: {:.0f} MB in {:.1f} s ({:.0f} MB/s)", label_, static_cast<double>(done_) / 1e6, seconds(took),
              static_cast<double>(done_) / 1e6 / seconds(took));
  }
}

void ConsoleProgress::draw(Clock::time_point now) {
  drawn_ = now;
  const double share = total_ ? std::min(1.0, static_cast<double>(done_) / static_cast<double>(total_)) : 0.0;
  const double rate = static_cast<double>(done_) / std::max(1e-9, seconds(now - start_));
  const auto filled = static_cast<std::size_t>(share * kBarWidth);
  const double left = rate > 0 ? static_cast<double>(total_ - std::min(total_, done_)) / rate : 0.0;
  const std::string line =
      fmt::format("\r{} [{}{}] {:3.0f}% {:.0f} MB/s {:.0f} s left\x1b[K", label_, std::string(filled, '#'),
                  std::string(kBarWidth - filled, '.'), share * 100, rate / 1e6, left);
  std::fputs(line.c_str(), stderr);
}

void ConsoleProgress::erase() {
  if (terminal_) std::fputs("\r\x1b[K", stderr);
}

}  // namespace glyd
