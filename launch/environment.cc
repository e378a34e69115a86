#include "weft/launch/environment.h"

#include <unistd.h>

#include <algorithm>
#include <map>
#include <string_view>

#include "weft/core/runtime/parallel.h"
#include "weft/core/runtime/phase.h"

namespace weft::launch {
namespace {

std::string with_port(const std::string& host, int port) {
  const bool bare_ipv6 = host.find(':') != std::string::npos;
  return (bare_ipv6 ? '[' + host + ']' : host) + ':' + std::to_string(port);
}

std::map<std::string, std::string> own_environment() {
  std::map<std::string, std::string> variables;
  for (char** variable = environ; variable && *variable; ++variable) {
    const std::string_view text = *variable;
    const std::size_t equals = text.find('=');
    if (equals != std::string_view::npos) {
      variables.emplace(text.substr(0, equals), text.substr(equals + 1));
    }
  }
  return variables;
}

}  // namespace

std::vector<std::string> rank_environment(const Options& options, const Place& place,
                                          int local_rank, int attempt,
                                          const std::string& error_file, int status_fd,
                                          int starts) {
  const auto text = [](int number) { return std::to_string(number); };
  const std::string rank = text(place.first_rank + local_rank);
  std::map<std::string, std::string> variables = own_environment();
  variables.emplace("OMP_NUM_THREADS", text(std::max(1, core_count() / options.nproc)));
  variables.emplace("PYTHONUNBUFFERED", "1");
  // Set by a torchrun around this one: programs would take its store for rank 0's.
  variables.erase("TORCHELASTIC_USE_AGENT_STORE");
  variables.erase("WEFT_ELASTIC");
  starts += place.joins ? 1 : 0;
  const bool goes_on = options.least_ranks() > 0 && place.world_size > 1;
  if (goes_on) variables["WEFT_ELASTIC"] = text(starts);
  if (!options.local_addr.empty()) variables["WEFT_LOCAL_ADDR"] = options.local_addr;
  const std::map<std::string, std::string> own = {
      {"RANK", rank},
      {"LOCAL_RANK", text(local_rank)},
      {"WORLD_SIZE", text(place.world_size)},
      {"LOCAL_WORLD_SIZE", text(options.nproc)},
      {"GROUP_RANK", text(options.node_rank)},
      {"GROUP_WORLD_SIZE", text(options.nnodes)},
      {"ROLE_RANK", rank},
      {"ROLE_WORLD_SIZE", text(place.world_size)},
      {"ROLE_NAME", options.role},
      {"MASTER_ADDR", options.master_addr},
      {"MASTER_PORT", text(place.master_port)},
      {"TORCHELASTIC_RESTART_COUNT", text(attempt + starts)},
      {"TORCHELASTIC_MAX_RESTARTS", text(options.max_restarts)},
      {"TORCHELASTIC_RUN_ID", options.run_id},
      {"WEFT_STORE", with_port(place.store_host, place.store_port)},
      {"WEFT_STORE_TOKEN", place.token},
      {"WEFT_ERROR_FILE", error_file},
      {StatusPage::kVariable, text(status_fd)},
  };
  std::vector<std::string> list;
  for (const auto* more : {&own, &options.variables}) {
    for (const auto& [name, value] : *more) variables.insert_or_assign(name, value);
  }
  for (const auto& [name, value] : variables) list.push_back(name + '=' + value);
  return list;
}

}  // namespace weft::launch
