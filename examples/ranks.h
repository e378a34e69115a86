// What the programs of several processes have in common.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "weft/train/options.h"
#include "weft/train/ranks.h"
#include "weft/weft.h"

namespace weft::examples {

/// --backend
inline train::Flag backend_flag(std::string& backend) {
  return {"--backend", &backend, "what the ranks talk by", {"auto", "shm", "gloo", "ring", "nccl"}};
}

/// This process's number on its host, by the launcher.
inline int local_rank() { return comm::launch_environment().local_rank; }

/// The ranks of `group`, for the recorder and for tests.
inline train::Ranks ranks(const std::shared_ptr<comm::ProcessGroup>& group) {
  return {group->rank(), group->size(), group->backend(),
          [group](const std::string& text) { return group->all_gather_object(text); }};
}

}  // namespace weft::examples
