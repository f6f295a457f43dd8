#pragma once
// Progress of long work: a bar on a terminal, plain lines elsewhere, nothing when quiet.

#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>

namespace glyd {

// The receiving end. The base class says nothing; advance() may be called from several threads.
class Progress {
 public:
  virtual ~Progress() = default;
  virtual void begin(const std::string& /*label*/, std::uint64_t /*total_bytes*/) {}
  virtual void advance(std::uint64_t /*bytes*/) {}
  virtual void end() {}
};

// Draws on stderr: label, bar, MB/s and time left, redrawn at most ten times a second on a terminal; elsewhere one line
// when work that took over two seconds ends.
class ConsoleProgress : public Progress {
 public:
  ConsoleProgress();
  ~ConsoleProgress() override;
  ConsoleProgress(const ConsoleProgress&) = delete;
  ConsoleProgress& operator=(const ConsoleProgress&) = delete;

  void begin(const std::string& label, std::uint64_t total_bytes) override;
  void advance(std::uint64_t bytes) override;
  void end() override;

 private:
  using Clock = std::chrono::steady_clock;
  void draw(Clock::time_point now);
  void erase();

  const bool terminal_;
  std::mutex mutex_;
  std::string label_;
  std::uint64_t total_ = 0, done_ = 0;
  Clock::time_point start_, drawn_;
  bool active_ = false;
};

}  // namespace glyd
