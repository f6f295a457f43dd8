#include "pack_options.h"

#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "base/thread_pool.h"
#include "command_line.h"

namespace glyd::tools {
namespace {

const char kExamples[] =
    "Examples:\n"
    "  glyd-pack Qwen/Qwen3-0.6B qwen3-packed            pack a model of the Hugging Face cache\n"
    "  glyd-run qwen3-packed \"Why is the sky blue?\"      run from it\n"
    "  glyd-pack MODEL --dry-run                         what packing would save, by class of tensor\n"
    "  glyd-pack --verify PACKED                         compare a packed directory with its checksums\n"
    "  glyd-pack --unpack PACKED OUT                     write the original files again, byte for byte\n"
    "\n"
    "Other files beside the weights are copied. Folders and weights in other forms (*.bin, *.pth, *.gguf, ...) are\n"
    "left out, so --unpack does not write them; packing names them.\n"
    "\n"
    "Exit codes: 0 done, 1 failed while running (a full disk), 2 wrong usage, 3 bad model or file, 4 not enough\n"
    "memory, 130 interrupted. OUT appears only when all of it is written.\n";

struct Written {
  std::optional<std::string> model, out, max_shard_size;
  std::optional<std::int64_t> threads;
  std::string device = "cpu";
  bool verify = false, no_verify = false, unpack = false, dry_run = false;
};

void declare(CommandLine& line, Written& w, PackOptions& o) {
  line.argument("MODEL", w.model);
  line.argument("OUT", w.out);

  line.group("What to do");
  line.flag("--unpack", w.unpack, "MODEL is packed: write its original to OUT");
  line.flag("--dry-run", w.dry_run, "show what packing would give, by class of tensor; nothing is written");
  line.flag("--verify", w.verify,
            "after packing, read everything back and compare it with the original (the default); without OUT: check a "
            "packed MODEL");
  line.flag("--no-verify", w.no_verify, "do not read back what was packed");

  line.group("Output");
  line.flag(
      "--force", o.force,
      "replace OUT if it is empty or holds a model and nothing else; the old one goes when the new one is complete");
  line.text("--max-shard-size", "SIZE", w.max_shard_size,
            "largest weight file, 5GB by default; KB, MB, GB are powers of 1000, KiB, MiB, GiB of 1024");
  line.flag("--json", o.json, "print the result as JSON on stdout");
  line.flag("-v,--verbose", o.verbose, "say more on stderr");
  line.flag("-q,--quiet", o.quiet, "only warnings and errors on stderr, no progress");
  line.text("--log-file", "FILE", o.log_file, "write messages to FILE too");
  line.version();

  line.group("Device");
  line.choice("--device", {"cpu"}, w.device, "where to pack");
  line.count("-t,--threads", "N", 1, 1024, w.threads, "CPU threads; default: all of the machine");
}

PackMode mode_of(const CommandLine& line, const Written& w) {
  line.exclude("--unpack", "--dry-run");
  line.exclude("--verify", "--no-verify");
  line.exclude("--unpack", "--no-verify", "unpacking always compares checksums");
  if (w.unpack) return PackMode::Unpack;
  if (w.dry_run) return PackMode::DryRun;
  return w.verify && !w.out ? PackMode::Verify : PackMode::Pack;
}

}  // namespace

std::optional<PackOptions> parse_pack_options(const std::vector<std::string>& args) {
  Written w;
  PackOptions o;
  CommandLine line("glyd-pack [OPTIONS] MODEL OUT",
                   "Packs the bf16 weights of a model without loss: about a third smaller, and glyd-run runs from the\n"
                   "packed directory. MODEL is a directory, or ORG/NAME in the local Hugging Face cache.",
                   kExamples);
  declare(line, w, o);
  if (!line.parse(args)) return std::nullopt;
  o.mode = mode_of(line, w);
  if (!w.model) fail(Code::Usage, "MODEL and OUT are missing: glyd-pack MODEL OUT");
  const bool writes = o.mode == PackMode::Pack || o.mode == PackMode::Unpack;
  if (writes && !w.out)
    fail(Code::Usage, "OUT is missing: glyd-pack {}MODEL OUT", w.unpack ? line.name("--unpack") + " " : "");
  if (writes && w.out->empty()) fail(Code::Usage, "OUT is empty: it is to name a directory");
  line.exclude("--verbose", "--quiet");
  if (w.max_shard_size) {
    const auto bytes = parse_size(*w.max_shard_size);
    if (!bytes)
      fail(Code::Usage, "{}: {} is not a size such as 5GB", line.name("--max-shard-size"), quote(*w.max_shard_size));
    o.max_shard_bytes = *bytes;
  }
  o.model = *w.model;
  o.out = w.out.value_or("");
  o.threads = w.threads ? static_cast<int>(*w.threads) : available_threads();
  o.verify = !w.no_verify;
  return o;
}

}  // namespace glyd::tools
