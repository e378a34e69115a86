#include "weft/train/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <iomanip>
#include <iostream>
#include <map>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "weft/core/base/error.h"
#include "weft/core/base/nearest.h"
#include "weft/core/runtime/runtime.h"
#include "weft/train/proof.h"

namespace weft::train {
namespace {

constexpr int kUsageError = 2;
constexpr std::int64_t kMany = 1'000'000'000;

/// Returns what is wrong with a value, or an empty text. May replace the value, "1/16" by 0.0625.
using Check = std::function<std::string(std::string&)>;

std::string check_device(const std::string& text) {
  try {
    Device{text};
    return {};
  } catch (const Error&) {
    return "'" + text + "' is no device; use cpu, cpu:N, cuda or cuda:N";
  }
}

std::string check_positive(const std::string& text) {
  double value = 0;
  const bool ok = CLI::detail::lexical_cast(text, value) && value > 0 && value < 1e9;
  return ok ? std::string() : "'" + text + "' is no number above 0 and below 1e9";
}

/// Replaces a quotient like "1/16" by its value.
std::string divide(std::string& text) {
  const std::size_t slash = text.find('/');
  double above = 0, below = 1;
  const bool numbers =
      CLI::detail::lexical_cast(text.substr(0, slash), above) &&
      (slash == std::string::npos || CLI::detail::lexical_cast(text.substr(slash + 1), below));
  const double value = above / below;
  if (!numbers || !(value > 0 && value < 1e9))
    return "'" + text + "' is no number above 0 and below 1e9, like 0.25 or 1/4";
  text = detail::concat(std::setprecision(17), value);
  return {};
}

/// Accepts only digits. The message of CLI11's own check lacks "whole" and the text that it got.
template <class T = std::int64_t>
Check whole_number(std::type_identity_t<T> least, std::type_identity_t<T> most) {
  return [=](const std::string& text) -> std::string {
    T value = 0;
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, value);
    if (error == std::errc() && stop == end && least <= value && value <= most) return {};
    return detail::concat("'", text, "' is no whole number from ", least, " to ", most);
  };
}

/// Replaces "64MiB" by a number of bytes.
std::string count_bytes(std::string& text) {
  const std::map<std::string, std::int64_t> units = {{"KiB", std::int64_t{1} << 10},
                                                     {"MiB", std::int64_t{1} << 20},
                                                     {"GiB", std::int64_t{1} << 30}};
  constexpr auto kAsWritten = CLI::AsNumberWithUnit::Options(CLI::AsNumberWithUnit::CASE_SENSITIVE |
                                                             CLI::AsNumberWithUnit::UNIT_REQUIRED);
  const CLI::AsNumberWithUnit convert(units, kAsWritten);
  std::string bytes = text;
  bool known = !text.empty() && '1' <= text[0] && text[0] <= '9';
  try {
    known = known && convert(bytes).empty();
  } catch (const CLI::ValidationError&) {
    known = false;
  }
  if (!known) return "'" + text + "' is no size like 512KiB, 64MiB or 2GiB";
  text = bytes;
  return {};
}

std::string check_path(const std::string& text) {
  return text.empty() ? "needs a name, got ''" : std::string();
}

/// An option whose value goes to *value, with its --help text, and a check of the given text or a
/// list of choices. Without these, integers are 1 to 10^9, quotients are allowed, and texts are not
/// empty. A default that fails the check means "none" and is not shown.
template <class T>
void add(CLI::App& app, const std::string& name, T* value, const std::string& help,
         Check check = {}, const std::vector<std::string>& choices = {}) {
  if constexpr (std::is_same_v<T, bool>) {
    app.add_flag(name, *value, help)->disable_flag_override();
  } else {
    CLI::Option* option = app.add_option(name, *value, help)->capture_default_str();
    if (!choices.empty()) {
      option->check(CLI::IsMember(choices));
      return;
    }
    if (!check) {
      if constexpr (std::is_integral_v<T>) check = whole_number(1, kMany);
      if constexpr (std::is_same_v<T, double>) check = divide;
      if constexpr (std::is_same_v<T, std::string>) check = check_path;
    }
    option->transform(CLI::Validator(check, ""));
    std::string shown = option->get_default_str();
    if (!check(shown).empty()) option->default_str("");
  }
}

int complain(const Options& options, const std::string& message) {
  std::cerr << options.example << ": " << message << "\nTry --help.\n";
  return kUsageError;
}

/// Reports the arguments that CLI11 could not use.
int complain_about(const std::vector<std::string>& extras, const CLI::App& app,
                   const Options& options) {
  const auto flag = std::ranges::find_if(extras, [](const auto& e) { return e.starts_with('-'); });
  if (flag == extras.end())
    return complain(options, "unexpected argument '" + extras.front() + "'");
  const std::string name = flag->substr(0, flag->find('='));
  std::vector<std::string> known;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& long_name : option->get_lnames()) known.push_back("--" + long_name);
  }
  const std::string near = nearest(name, known);
  return complain(options, "unknown option " + name +
                               (near.empty() ? std::string() : "; did you mean " + near + "?"));
}

}  // namespace

data::DataLoaderOptions Options::loader(std::shared_ptr<const data::Sampler> sampler) const {
  const data::DataLoaderOptions made = {.batch_size = batch_size,
                                        .shuffle = shuffle && !sampler,
                                        .workers = workers,
                                        .sampler = sampler,
                                        .device = device,
                                        .device_resident = data_on_device};
  return findings->proof ? findings->proof->loader(made) : made;
}

bool Options::alone() const { return findings->proof && findings->proof->replays(); }

void Options::note_micro_batch(std::int64_t number) const {
  if (findings->proof) findings->proof->on_micro_batch(number);
}

std::optional<int> parse_options(int argc, const char* const* argv, Options& options,
                                 const std::vector<Flag>& flags) {
  std::string device = device_count(DeviceType::cuda) > 0 ? "cuda" : "cpu";
  std::string dtype = to_string(options.dtype);
  std::string amp = options.amp ? "bf16" : "off";
  std::string map_location = to_string(options.map_location);
  if (options.out.empty()) options.out = "outputs/" + options.example;
  bool no_shuffle = !options.shuffle, graph = false, no_graph = false;
  int local_rank = -1;

  CLI::App app(options.description, options.example);
  app.allow_extras();
  app.option_defaults()->take_last();
  app.get_formatter()->column_width(34);
  add(app, "--device", &device, "cpu, cuda or cuda:N", check_device);
  add(app, "--dtype", &dtype, "f32 or f64", {}, {"f32", "f64"});
  add(app, "--amp", &amp, "off, or bf16: products and convolutions in bf16, weights in f32", {},
      {"off", "bf16"});
  add(app, "--float32-matmul-precision", &options.float32_matmul_precision,
      "highest, high or medium: the last two let CUDA multiply in TF32", {},
      {"highest", "high", "medium"});
  add(app, "--conv-fp32-precision", &options.conv_fp32_precision,
      "tf32 or ieee: tf32 lets CUDA convolve in TF32 and the CPU by Winograd's algorithm", {},
      {"tf32", "ieee"});
  add(app, "--epochs", &options.epochs, "passes over the training data");
  add(app, "--batch-size", &options.batch_size, options.unit + " per step",
      whole_number(1, 1'000'000));
  add(app, "--lr", &options.lr, "learning rate", check_positive);
  add(app, "--seed", &options.seed, "of the weights and the order",
      whole_number<std::uint64_t>(0, ~std::uint64_t{0}));
  add(app, "--no-shuffle", &no_shuffle, "visit the " + options.unit + " in the order of the file");
  add(app, "--workers", &options.workers,
      "threads that load " + options.unit + "; 0: none beside the main one", whole_number(0, 256));
  add(app, "--data-on-device", &options.data_on_device,
      "copy the training images to the device once, and gather the batches there");
  add(app, "--threads", &options.threads, "cores for computing, shared by the host devices; 0: all",
      whole_number(0, 4096));
  add(app, "--limit-steps", &options.limit_steps,
      "stop after so many steps, those before --resume included, and test with as many "
      "batches at most; 0: no limit",
      whole_number(0, kMany));
  add(app, "--data", &options.data, options.data_help);
  add(app, "--out", &options.out, "folder for model, pictures and metrics");
  add(app, "--weights", &options.weights,
      "begin at step 0 with the state dict in this file, safetensors or PyTorch's: FILE or "
      "FILE:KEY");
  add(app, "--resume", &options.resume,
      "go on from this checkpoint.safetensors; latest: from the one in --out, where there is one");
  add(app, "--checkpoint-every", &options.checkpoint_every,
      "write the checkpoint also after every so many steps; 0: at the ends of epochs",
      whole_number(0, kMany));
  add(app, "--map-location", &map_location, "read the checkpoint into this device's memory",
      check_device);
  add(app, "--trace", &options.trace, "write the spans of all ranks here, for ui.perfetto.dev");
  add(app, "--tensorboard", &options.tensorboard,
      "write losses, tests and images/s for TensorBoard, into OUT/tensorboard");
  add(app, "--deterministic", &options.deterministic, "same bits in every run");
  add(app, "--graph", &graph,
      "capture the training step once and replay it, or end with an error: on CUDA as one graph; "
      "the CPU only checks that it could be. Without: on CUDA where that is possible, and where "
      "no --trace asks for the spans");
  add(app, "--no-graph", &no_graph, "run each step as it is");
  app.get_option("--graph")->excludes(app.get_option("--no-graph"));
  add(app, "--host-devices", &options.host_devices, "split the CPU into so many devices",
      whole_number(1, kMaxDevices));
  add(app, "--host-device-memory", &options.host_device_memory,
      "what each device of the CPU may hold, like 64MiB; none: as much as there is", count_bytes);
  add(app, "--log-every", &options.log_every, "print a line every so many steps; 0: none",
      whole_number(0, kMany));
  add(app, "--summary", &options.summary,
      "print the model's layers, parameters and MACs for one image, and end");
  if (options.local_rank) {
    add(app, "--local-rank,--local_rank", &local_rank,
        "this process's number on its host, as torch.distributed.launch gives it; "
        "without: as the environment says",
        whole_number(0, 1'000'000));
  }
  for (const Flag& flag : flags) {
    std::visit(
        [&](auto* value) { add(app, flag.name, value, flag.help, flag.check, flag.choices); },
        flag.value);
  }
  for (const Flag& flag : flags) {
    for (const std::string& other : flag.excludes) {
      app.get_option(flag.name)->excludes(app.get_option(other));
    }
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& help) {
    return app.exit(help);
  } catch (const CLI::ArgumentMismatch& error) {
    const std::string text = error.what(), name = text.substr(0, text.find_first_of(": "));
    if (text.ends_with("missing")) return complain(options, name + " needs a value");
    return complain(options, "--" + name + " takes no value");  // CLI11 drops the dashes here
  } catch (const CLI::ParseError& error) {
    return complain(options, error.what());
  }
  if (const std::vector<std::string> extras = app.remaining(); !extras.empty()) {
    return complain_about(extras, app, options);
  }
  if (local_rank >= 0) {
    const char* known = std::getenv("LOCAL_RANK");
    if (known && known != std::to_string(local_rank)) {
      return complain(options, detail::concat("--local-rank ", local_rank,
                                              ", but the environment has LOCAL_RANK=", known,
                                              "; leave one of them out"));
    }
    options.local_rank = [local_rank] { return local_rank; };
  }
  for (const Flag& flag : flags) {
    std::visit([&](const auto* value) { options.flags[flag.name.substr(2)] = *value; }, flag.value);
  }
  if (options.host_devices > 0 && app.count("--device") == 0) device = "cpu";
  options.device = Device(device);
  if (const int gpus = device_count(DeviceType::cuda);
      device == "cuda" && gpus > 0 && options.local_rank) {
    options.device.index = options.local_rank() % gpus;
  }
  options.map_location = Device(map_location);
  options.dtype = parse_dtype(dtype);
  options.amp = amp == "bf16";
  options.shuffle = !no_shuffle;
  if (graph || no_graph) options.graph = graph;
  if (options.amp && options.dtype != DType::f32) {
    return complain(options, "--amp bf16 needs --dtype f32");
  }
  return std::nullopt;
}

}  // namespace weft::train
