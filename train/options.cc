#include "weft/train/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <iomanip>
#include <iostream>
#include <map>
#include <numeric>
#include <utility>
#include <vector>

#include "weft/core/base/error.h"
#include "weft/core/base/nearest.h"
#include "weft/core/runtime/runtime.h"
#include "weft/train/shards.h"

namespace weft::train {
namespace {

constexpr int kUsageError = 2;
constexpr std::int64_t kMany = 1'000'000'000;

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

/// Puts the quotient in place of "1/16".
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

/// Digits alone, and not CLI11's own check, which says neither "whole" nor what it got.
template <class T>
CLI::Validator whole_number(T least, T most) {
  return CLI::Validator(
      [=](const std::string& text) -> std::string {
        T value = 0;
        const char* end = text.data() + text.size();
        const auto [stop, error] = std::from_chars(text.data(), end, value);
        if (error == std::errc() && stop == end && least <= value && value <= most) return {};
        return detail::concat("'", text, "' is no whole number from ", least, " to ", most);
      },
      "");
}

/// Puts the bytes in place of "64MiB".
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

void add_flag(CLI::App& app, const Flag& flag) {
  std::visit(
      [&]<class T>(T* value) {
        if constexpr (std::is_same_v<T, bool>) {
          app.add_flag(flag.name, *value, flag.help)->disable_flag_override();
        } else {
          CLI::Option* option = app.add_option(flag.name, *value, flag.help)->capture_default_str();
          if constexpr (std::is_same_v<T, double>) option->transform(CLI::Validator(divide, ""));
          if (!flag.choices.empty()) {
            option->check(CLI::IsMember(flag.choices));
          } else if constexpr (std::is_same_v<T, std::int64_t>) {
            option->check(whole_number(std::int64_t{1}, kMany));
          } else if constexpr (std::is_same_v<T, std::string>) {
            option->check(CLI::Validator(flag.check ? flag.check : check_path, ""));
          }
        }
      },
      flag.value);
}

int complain(const Options& options, const std::string& message) {
  std::cerr << options.example << ": " << message << "\nTry --help.\n";
  return kUsageError;
}

/// What CLI11 could not place.
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
  WEFT_CHECK(as_ranks == 1, InvalidArgument, "options", example, " has no --as-ranks");
  return {.batch_size = batch_size,
          .shuffle = shuffle && !sampler,
          .workers = workers,
          .sampler = sampler,
          .device = device,
          .device_resident = data_on_device};
}

data::DataLoaderOptions Options::loader(std::int64_t size) const {
  Options all = *this;
  if (std::exchange(all.as_ranks, 1) == 1) return loader();
  all.batch_size *= as_ranks;
  return all.loader(std::make_shared<ShardsSampler>(size, as_ranks, batch_size, shuffle));
}

std::optional<int> parse_options(int argc, const char* const* argv, Options& options,
                                 const std::vector<Flag>& flags) {
  CLI::App app(options.description, options.example);
  app.allow_extras();
  app.option_defaults()->take_last();
  app.get_formatter()->column_width(34);
  std::string device = device_count(DeviceType::cuda) > 0 ? "cuda" : "cpu";
  std::string dtype = to_string(options.dtype);
  std::string amp = options.amp ? "bf16" : "off";
  std::string map_location = to_string(options.map_location);
  if (options.out.empty()) options.out = "outputs/" + options.example;
  bool no_shuffle = !options.shuffle;

  app.add_option("--device", device, "cpu, cuda or cuda:N")
      ->check(CLI::Validator(check_device, ""))
      ->capture_default_str();
  app.add_option("--dtype", dtype, "f32 or f64")
      ->check(CLI::IsMember(std::vector<std::string>{"f32", "f64"}))
      ->capture_default_str();
  app.add_option("--amp", amp, "off, or bf16: products and convolutions in bf16, weights in f32")
      ->check(CLI::IsMember(std::vector<std::string>{"off", "bf16"}))
      ->capture_default_str();
  app.add_option("--float32-matmul-precision", options.float32_matmul_precision,
                 "highest, high or medium: the last two let CUDA multiply in TF32")
      ->check(CLI::IsMember(std::vector<std::string>{"highest", "high", "medium"}))
      ->capture_default_str();
  app.add_option(
         "--conv-fp32-precision", options.conv_fp32_precision,
         "tf32 or ieee: tf32 lets CUDA convolve in TF32 and the CPU by Winograd's algorithm")
      ->check(CLI::IsMember(std::vector<std::string>{"tf32", "ieee"}))
      ->capture_default_str();
  app.add_option("--epochs", options.epochs, "passes over the training data")
      ->check(whole_number(std::int64_t{1}, kMany))
      ->capture_default_str();
  app.add_option("--batch-size", options.batch_size, options.unit + " per step")
      ->check(whole_number(std::int64_t{1}, std::int64_t{1'000'000}))
      ->capture_default_str();
  app.add_option("--lr", options.lr, "learning rate")
      ->check(CLI::Validator(check_positive, ""))
      ->capture_default_str();
  app.add_option("--seed", options.seed, "of the weights and the order")
      ->check(whole_number(std::uint64_t{0}, ~std::uint64_t{0}))
      ->capture_default_str();
  app.add_flag("--no-shuffle", no_shuffle,
               "visit the " + options.unit + " in the order of the file")
      ->disable_flag_override();
  app.add_option("--workers", options.workers,
                 "threads that load " + options.unit + "; 0: none beside the main one")
      ->check(whole_number(0, 256))
      ->capture_default_str();
  app.add_flag("--data-on-device", options.data_on_device,
               "copy the training images to the device once, and gather the batches there")
      ->disable_flag_override();
  app.add_option("--threads", options.threads,
                 "cores for computing, shared by the host devices; 0: all")
      ->check(whole_number(0, 4096))
      ->capture_default_str();
  app.add_option("--limit-steps", options.limit_steps,
                 "stop after so many steps, those before --resume included, and test with as many "
                 "batches at most; 0: no limit")
      ->check(whole_number(std::int64_t{0}, kMany))
      ->capture_default_str();
  const CLI::Validator path(check_path, "");
  app.add_option("--data", options.data, options.data_help)->check(path)->capture_default_str();
  app.add_option("--out", options.out, "folder for model, pictures and metrics")
      ->check(path)
      ->capture_default_str();
  app.add_option(
         "--resume", options.resume,
         "go on from this checkpoint.safetensors; latest: from the one in --out, where there "
         "is one")
      ->check(path);
  app.add_option("--checkpoint-every", options.checkpoint_every,
                 "write the checkpoint also after every so many steps; 0: at the ends of epochs")
      ->check(whole_number(std::int64_t{0}, kMany))
      ->capture_default_str();
  app.add_option("--map-location", map_location, "read the checkpoint into this device's memory")
      ->check(CLI::Validator(check_device, ""))
      ->capture_default_str();
  app.add_option("--trace", options.trace, "write the spans of all ranks here, for ui.perfetto.dev")
      ->check(path);
  app.add_flag("--tensorboard", options.tensorboard,
               "write losses, tests and images/s for TensorBoard, into OUT/tensorboard")
      ->disable_flag_override();
  app.add_flag("--deterministic", options.deterministic, "same bits in every run")
      ->disable_flag_override();
  app.add_flag("--graph", options.graph,
               "capture the training step once and replay it: on CUDA as one graph; the CPU only "
               "checks that it could be")
      ->disable_flag_override();
  app.add_option("--host-devices", options.host_devices, "split the CPU into so many devices")
      ->check(whole_number(1, kMaxDevices));
  app.add_option("--host-device-memory", options.host_device_memory,
                 "what each device of the CPU may hold, like 64MiB; none: as much as there is")
      ->transform(CLI::Validator(count_bytes, ""));
  app.add_option("--as-ranks", options.as_ranks,
                 "take in this one process the steps of so many ranks (docs/ddp.md)")
      ->check(whole_number(1, 64))
      ->capture_default_str();
  app.add_option("--log-every", options.log_every, "print a line every so many steps; 0: none")
      ->check(whole_number(std::int64_t{0}, kMany))
      ->capture_default_str();
  app.add_flag("--summary", options.summary,
               "print the model's layers, parameters and MACs for one image, and end")
      ->disable_flag_override();
  std::optional<int> local_rank;
  if (options.local_rank) {
    app.add_option("--local-rank,--local_rank", local_rank,
                   "this process's number on its host, as torch.distributed.launch gives it; "
                   "without: as the environment says")
        ->check(whole_number(0, 1'000'000));
  }
  for (const Flag& flag : flags) add_flag(app, flag);

  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& help) {
    return app.exit(help);
  } catch (const CLI::ArgumentMismatch& error) {
    const std::string text = error.what(), name = text.substr(0, text.find_first_of(": "));
    if (text.ends_with("missing")) return complain(options, name + " needs a value");
    return complain(options, "--" + name + " takes no value");  // CLI11 leaves the dashes out here
  } catch (const CLI::ParseError& error) {
    return complain(options, error.what());
  }
  if (const std::vector<std::string> extras = app.remaining(); !extras.empty()) {
    return complain_about(extras, app, options);
  }
  if (local_rank) {
    const char* known = std::getenv("LOCAL_RANK");
    if (known && known != std::to_string(*local_rank)) {
      return complain(options, detail::concat("--local-rank ", *local_rank,
                                              ", but the environment has LOCAL_RANK=", known,
                                              "; leave one of them out"));
    }
    options.local_rank = [given = *local_rank] { return given; };
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
  if (options.amp && options.dtype != DType::f32) {
    return complain(options, "--amp bf16 needs --dtype f32");
  }
  // The order of the images counts the epochs from here on.
  if (options.as_ranks > 1 && !options.resume.empty()) {
    return complain(options, "--as-ranks and --resume exclude each other");
  }
  return std::nullopt;
}

}  // namespace weft::train
