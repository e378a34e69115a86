#include "weft/launch/options.h"

#include <arpa/inet.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <charconv>
#include <filesystem>
#include <iostream>
#include <memory>
#include <sstream>
#include <system_error>
#include <type_traits>
#include <utility>

#include "weft/core/base/error.h"
#include "weft/core/base/nearest.h"
#include "weft/core/runtime/parallel.h"
#include "weft/core/runtime/runtime.h"

namespace weft::launch {
namespace {

constexpr int kUsageError = 2;
constexpr int kMostRanks = 4096, kMostPort = 65535;
constexpr int kTorchrunPort = 29500, kRendezvousPort = 29400;

/// The texts of the command line, before they are interpreted.
struct Texts {
  std::string nproc = "1", np, hosts, nnodes = "1", node_rank = "0";
  bool nproc_is_given = false, standalone = false;
  std::string endpoint, master_addr, master_port, max_restarts = "0", min_nproc, grace = "3";
  std::string redirects, tee, filter;
  std::string ignored;
};

[[noreturn]] void refuse(const std::string& option, const std::string& text) {
  throw CLI::ValidationError(option, text);
}

int whole_number(const std::string& option, const std::string& text, int least, int most) {
  int value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end || value < least || value > most) {
    refuse(option, detail::concat("'", text, "' is no whole number from ", least, " to ", most));
  }
  return value;
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, separator);) parts.push_back(part);
  return parts;
}

/// The slots of "localhost:4" or of "localhost", which has one.
int slots(const std::string& hosts) {
  const std::vector<std::string> host = split(hosts, ':');
  if (hosts.find(',') != std::string::npos || host.empty() || host.size() > 2 ||
      (host[0] != "localhost" && host[0] != "127.0.0.1")) {
    refuse("--hosts", "'" + hosts +
                          "' is not localhost:N; on several hosts start weftrun on each, with "
                          "--nnodes, --node-rank and --rdzv-endpoint");
  }
  return host.size() == 1 ? 1 : whole_number("--hosts", host[1], 1, kMostRanks);
}

/// From "4", "cpu", "gpu" or "auto".
int ranks(const std::string& option, const std::string& text) {
  const int gpus = text == "gpu" || text == "auto" ? device_count(DeviceType::cuda) : 0;
  if (text == "gpu" && gpus == 0)
    refuse(option, "gpu: there is no GPU here; give a number, or cpu");
  if (gpus > 0) return gpus;
  if (text == "cpu" || text == "auto") return core_count();
  return whole_number(option, text, 1, kMostRanks);
}

int ranks_of_node(const Texts& texts) {
  const bool np = !texts.np.empty();
  if (!np && !texts.nproc_is_given && !texts.hosts.empty()) return slots(texts.hosts);
  if (np && texts.nproc_is_given && texts.np != texts.nproc)
    refuse("--np", "'" + texts.np + "', and --nproc-per-node says '" + texts.nproc + "'");
  const int nproc = np ? ranks("--np", texts.np) : ranks("--nproc-per-node", texts.nproc);
  if (!texts.hosts.empty() && slots(texts.hosts) < nproc) {
    refuse("--hosts", detail::concat("'", texts.hosts, "' has room for fewer ranks than ", nproc));
  }
  return nproc;
}

/// Sets the number of nodes from "2", or from "1:3" as torchrun writes a range.
void set_nodes(const std::string& text, Options& options) {
  const std::size_t colon = text.find(':');
  const std::string least = text.substr(0, colon);
  const std::string most = colon == std::string::npos ? least : text.substr(colon + 1);
  const int least_nodes = whole_number("--nnodes", least, 1, kMostRanks);
  options.nnodes = whole_number("--nnodes", most, least_nodes, kMostRanks);
  if (least_nodes < options.nnodes) options.min_nnodes = least_nodes;
}

std::chrono::milliseconds seconds(const std::string& option, const std::string& text) {
  double value = 0;
  if (!CLI::detail::lexical_cast(text, value) || !(value >= 0 && value <= 86400)) {
    refuse(option, "'" + text + "' is no number of seconds from 0 to 86400");
  }
  return std::chrono::milliseconds(static_cast<std::int64_t>(value * 1000));
}

/// From "3", or from "0:1,1:2" for local ranks 0 and 1.
StreamChoice streams(const std::string& option, const std::string& text, int nproc) {
  StreamChoice choice;
  if (text.find(':') == std::string::npos) {
    if (!text.empty()) choice.all = whole_number(option, text, 0, 3);
    return choice;
  }
  for (const std::string& part : split(text, ',')) {
    const std::vector<std::string> pair = split(part, ':');
    if (pair.size() != 2) refuse(option, "'" + part + "' is not LOCAL_RANK:STREAMS");
    choice.ranks[whole_number(option, pair[0], 0, nproc - 1)] = whole_number(option, pair[1], 0, 3);
  }
  return choice;
}

/// Sets where the nodes meet, and the address for the ranks' programs. Without --rdzv-endpoint, the
/// nodes meet at --master-addr and --master-port, as in torchrun.
void set_addresses(const Texts& texts, Options& options) {
  if (!texts.master_addr.empty()) options.master_addr = texts.master_addr;
  if (!texts.master_port.empty()) {
    options.master_port = whole_number("--master-port", texts.master_port, 0, kMostPort);
  }
  if (options.nnodes == 1) return;
  if (texts.endpoint.empty()) {
    options.endpoint_host = options.master_addr;
    options.endpoint_port = std::exchange(options.master_port, 0);
    if (options.endpoint_port == 0) options.endpoint_port = kTorchrunPort;
    return;
  }
  // "host", "host:port", "::1", "[::1]", "[::1]:port"
  const std::size_t colon = texts.endpoint.rfind(':');
  const bool bare = !texts.endpoint.starts_with('[') && texts.endpoint.find(':') != colon;
  const bool has_port = colon != std::string::npos && !bare && !texts.endpoint.ends_with(']');
  options.endpoint_host = has_port ? texts.endpoint.substr(0, colon) : texts.endpoint;
  options.endpoint_port =
      has_port ? whole_number("--rdzv-endpoint", texts.endpoint.substr(colon + 1), 1, kMostPort)
               : kRendezvousPort;
  in6_addr address{};
  const std::string digits = texts.endpoint.substr(0, texts.endpoint.find('%'));  // %eth0 is a zone
  if (bare && ::inet_pton(AF_INET6, digits.c_str(), &address) != 1) {
    refuse("--rdzv-endpoint",
           "'" + texts.endpoint + "' is no IPv6 address; with a port it is [ADDRESS]:PORT");
  }
  if (options.endpoint_host.starts_with('[') && options.endpoint_host.ends_with(']')) {
    options.endpoint_host = options.endpoint_host.substr(1, options.endpoint_host.size() - 2);
  }
  if (options.endpoint_host.empty()) refuse("--rdzv-endpoint", "needs a host, as HOST:PORT");
  if (texts.master_addr.empty()) options.master_addr = options.endpoint_host;
}

/// The default is failure.json next to the report, unless the report has that name.
void set_failure_file(Options& options) {
  const std::filesystem::path report = options.report;
  const auto place = [](const std::filesystem::path& file) {
    std::error_code unknown;  // then it compares as it is written
    const std::filesystem::path found =
        std::filesystem::weakly_canonical(std::filesystem::absolute(file, unknown), unknown);
    return unknown ? file : found;
  };
  if (!options.failure.empty() && !report.empty() && place(options.failure) == place(report)) {
    refuse("--failure", "'" + options.failure + "' is the --report, too");
  }
  if (options.failure.empty() && !report.empty() && report.filename() != "failure.json") {
    options.failure = std::filesystem::path(report).replace_filename("failure.json");
  }
}

void understand(const Texts& texts, Options& options) {
  options.nproc = ranks_of_node(texts);
  set_nodes(texts.nnodes, options);
  options.node_rank = whole_number("--node-rank", texts.node_rank, 0, options.nnodes - 1);
  if (texts.standalone && options.nnodes > 1) {
    refuse("--standalone", "is for one node, and --nnodes says " + texts.nnodes);
  }
  set_addresses(texts, options);
  options.max_restarts = whole_number("--max-restarts", texts.max_restarts, 0, 1'000'000);
  if (!texts.min_nproc.empty()) {
    options.min_nproc = whole_number("--min-nproc", texts.min_nproc, 1, options.nproc);
    if (options.nnodes > 1)
      refuse("--min-nproc", "is for one node, and --nnodes says " + texts.nnodes);
  }
  options.grace = seconds("--grace", texts.grace);
  set_failure_file(options);
  options.redirects = streams("--redirects", texts.redirects, options.nproc);
  options.tee = streams("--tee", texts.tee, options.nproc);
  if (!options.log_dir.empty() && texts.redirects.empty() && texts.tee.empty()) options.tee.all = 3;
  for (const std::string& rank : split(texts.filter, ',')) {
    options.local_ranks_filter.insert(
        whole_number("--local-ranks-filter", rank, 0, options.nproc - 1));
  }
}

/// Translates spellings that torchrun and Horovod also allow to the one that CLI11 knows: "-np" to
/// "--np", and "--log_dir=x_y" to "--log-dir=x_y".
std::string usual_spelling(std::string argument) {
  if (argument == "-np") return "--np";
  if (argument.starts_with("--")) {
    const auto name_end = argument.begin() + std::min(argument.find('='), argument.size());
    std::replace(argument.begin(), name_end, '_', '-');
  }
  return argument;
}

class HelpFormat final : public CLI::Formatter {
 public:
  HelpFormat() { column_width(26); }
  std::string make_usage(const CLI::App*, std::string) const override {
    return "usage: weftrun [options] PROGRAM [its arguments]\n";
  }
  std::string make_option_opts(const CLI::Option* option) const override {
    const std::string value = option->get_default_str();
    return option->get_expected_min() == 0 ? "" : value.empty() ? " ..." : " " + value;
  }
};

int complain(const std::string& message) {
  std::cerr << "weftrun: " << message << "\nTry --help.\n";
  return kUsageError;
}

int complain_about(const std::string& unknown, const CLI::App& app) {
  std::vector<std::string> known;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
  }
  const std::string name = unknown.substr(0, unknown.find('='));
  const std::string near = nearest(name, known);
  return complain("unknown option " + name +
                  (near.empty() ? std::string() : "; did you mean " + near + "?"));
}

void declare(CLI::App& app, Texts& texts, Options& options) {
  const auto add = [&](const std::string& names, auto& value, const std::string& help) {
    CLI::Option* option = nullptr;
    if constexpr (std::is_same_v<decltype(value), bool&>) {
      option = app.add_flag(names, value, help)->disable_flag_override();
    } else {
      option = app.add_option(names, value, help);
    }
    std::string variable = "PET_" + option->get_lnames().front();
    std::ranges::transform(variable, variable.begin(), [](unsigned char c) {
      return c == '-' ? '_' : static_cast<char>(std::toupper(c));
    });
    option->envname(variable);
    return option;
  };
  add("--nproc-per-node", texts.nproc,
      "ranks on this node: N, cpu (one per core), gpu, or auto (GPUs, else cores)")
      ->capture_default_str();
  add("--np", texts.np, "the same, Horovod's -np");
  add("-H,--hosts", texts.hosts, "localhost:N, as Horovod writes it");
  add("--nnodes", texts.nnodes,
      "nodes that take part; weftrun is started on each. MIN:MAX, for programs with "
      "parallel::Elastic: the others go on when a node or a rank fails, while the ranks of MIN "
      "nodes are left, and a node whose weftrun is started again joins them; node 0 has to stay")
      ->capture_default_str();
  add("--node-rank", texts.node_rank, "which of them this is")->capture_default_str();
  add("--rdzv-endpoint", texts.endpoint,
      "HOST:PORT where several nodes meet; node 0 listens there");
  add("--token-file", options.token_file,
      "several nodes: a file, the same on each and readable by its owner alone, with a secret");
  add("--standalone", texts.standalone, "one node, any free port, which is what one node has");
  add("--master-addr", texts.master_addr, "MASTER_ADDR of the ranks; 127.0.0.1 on one node");
  add("--master-port", texts.master_port, "MASTER_PORT of the ranks; else a free one");
  add("--local-addr", options.local_addr,
      "this node's address, on which its ranks listen: WEFT_LOCAL_ADDR; 127.0.0.1 if not given");
  add("--max-restarts", texts.max_restarts,
      "start all ranks anew, with the same command line, after so many failures at most; with "
      "--min-nproc or --nnodes MIN:MAX first those that have failed alone, with the latter only "
      "these")
      ->capture_default_str();
  add("--min-nproc,--min-np", texts.min_nproc,
      "for programs with parallel::Elastic: when a rank fails, the others go on while so many are "
      "left, and ranks are started again one by one, which counts for --max-restarts; --min-np is "
      "Horovod's");
  add("--grace", texts.grace,
      "seconds that ranks have to end by themselves after a failure or a signal; then they get "
      "SIGTERM and, 1.5 s later, SIGKILL")
      ->capture_default_str();
  add("-r,--redirects", texts.redirects,
      "standard streams that go to files: 0 none, 1 stdout, 2 stderr, 3 both, or by local rank: "
      "0:1,1:3");
  add("-t,--tee", texts.tee, "streams that go to files and are shown, spelled like -r");
  add("--log-dir", options.log_dir,
      "the files' folder, one in the temporary folder if not given; alone it means -t 3");
  add("--local-ranks-filter", texts.filter, "show only these local ranks: 0,1");
  add("--report", options.report, "write here as JSON how each rank ended");
  add("--failure", options.failure,
      "write here as JSON, if the run fails, what each rank did last, for ./weft failure; "
      "failure.json beside the --report if not given");
  add("--no-python", options.no_python,
      "run a PROGRAM that ends in .py as it is, and not by python3");
  add("--rdzv-id", options.run_id, "TORCHELASTIC_RUN_ID of the ranks")->capture_default_str();
  add("--role", options.role, "ROLE_NAME of the ranks")->capture_default_str();
  for (const char* name : {"--rdzv-backend", "--rdzv-conf", "--monitor-interval"}) {
    add(name, texts.ignored, "torchrun's; of no effect");
  }
}

}  // namespace

bool StreamChoice::has(int local_rank, StandardStream stream) const {
  const auto own = ranks.find(local_rank);
  const int bits = own == ranks.end() ? all : own->second;
  return (bits >> static_cast<int>(stream) & 1) != 0;
}

std::optional<int> parse_options(int argc, const char* const* argv, Options& options) {
  CLI::App app(
      "Runs PROGRAM as several ranks, processes that find each other by their environment.",
      "weftrun");
  app.prefix_command();
  app.option_defaults()->take_last();
  app.formatter(std::make_shared<HelpFormat>());
  app.footer(
      "Each option NAME may be written with underscores, and given by the variable PET_NAME.\n"
      "The ranks get torchrun's environment (RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR ...), the\n"
      "store of this launcher (WEFT_STORE, WEFT_STORE_TOKEN), and an equal share of the cores as\n"
      "OMP_NUM_THREADS unless that is set.");
  Texts texts;
  declare(app, texts, options);

  std::vector<std::string> arguments;
  for (int i = 1; i < argc; ++i) arguments.push_back(usual_spelling(argv[i]));
  try {
    std::ranges::reverse(arguments);  // CLI11 takes the last one first
    app.parse(std::move(arguments));
    std::vector<std::string> rest = app.remaining();
    if (!rest.empty() && rest.front() == "--") rest.erase(rest.begin());
    if (rest.empty()) return complain("which program? weftrun [options] PROGRAM [its arguments]");
    if (rest.front().starts_with('-')) return complain_about(rest.front(), app);
    options.command.assign(argv + argc - rest.size(), argv + argc);  // with their original spelling
    texts.nproc_is_given = app.count("--nproc-per-node") > 0;
    understand(texts, options);
  } catch (const CLI::CallForHelp& help) {
    return app.exit(help);
  } catch (const CLI::ArgumentMismatch& error) {
    const std::string text = error.what(), name = text.substr(0, text.find_first_of(": "));
    if (text.ends_with("missing")) return complain(name + " needs a value");
    return complain("--" + name + " takes no value");  // CLI11 drops the dashes here
  } catch (const CLI::ParseError& error) {
    return complain(error.what());
  }
  return std::nullopt;
}

}  // namespace weft::launch
