// What a thread keeps for the nodes that it records. Private to autograd/.
#pragma once

#include <cstdint>

#include "weft/core/base/intrusive_ptr.h"
#include "weft/core/runtime/thread_local.h"

namespace weft::autograd {

class Node;
class TapeObserver;

struct ThreadTape {
  std::uint64_t last_sequence = 0;
  intrusive_ptr<Node>* release_list = nullptr;  // of the outermost running ~Node
  TapeObserver* observer = nullptr;
  bool in_first_forward = false;  // of a checkpoint
};
extern constinit ThreadLocal<ThreadTape> tape_of_thread;

}  // namespace weft::autograd
