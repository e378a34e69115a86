#include "weft/parallel/join.h"

#include <algorithm>
#include <string>
#include <vector>

#include "weft/autograd/autograd.h"

namespace weft::parallel {
namespace {

// Before each collective the ranks tell each other which one comes next; "" means done.
class Join {
 public:
  Join(Reducer& reducer, const JoinOptions& options) : reducer_(reducer), options_(options) {
    reducer_.before_collectives([this](const char* next) { tell(next); });
  }
  ~Join() {
    reducer_.before_collectives({});
    reducer_.set_shares(0, reducer_.group().size());
  }
  Join(const Join&) = delete;
  Join& operator=(const Join&) = delete;

  void follow_others() {
    for (std::string next = tell(""); !next.empty(); next = tell("")) {
      if (next == Reducer::kBuffers) {
        reducer_.broadcast_buffers();
        continue;
      }
      for (const GradientBuckets::Parameter& p : reducer_.buckets().parameters()) {
        autograd::zero_grad(p.tensor);
      }
      reducer_.average();
      if (options_.step) options_.step();
    }
  }
  // The first rank that was not done in the last exchange.
  int root() const { return root_; }

 private:
  // Tells the ranks what comes next here. Returns what the first one that is not done said.
  std::string tell(const char* next) {
    comm::ProcessGroup& group = reducer_.group();
    const comm::ProcessGroup::Tag tag("join");  // the program's own may have ended here
    const std::vector<std::string> said = group.all_gather_object(next);
    const auto is_active = [](const std::string& text) { return !text.empty(); };
    const auto first = std::ranges::find_if(said, is_active);
    if (first == said.end()) return "";
    root_ = static_cast<int>(first - said.begin());
    reducer_.set_shares(root_, options_.divide_by_initial_world_size
                                   ? group.size()
                                   : static_cast<int>(std::ranges::count_if(said, is_active)));
    return *first;
  }

  Reducer& reducer_;
  const JoinOptions& options_;
  int root_ = 0;
};

}  // namespace

void join(Reducer& reducer, const std::function<void()>& body, const JoinOptions& options) {
  Join join(reducer, options);
  try {
    body();
    join.follow_others();
  } catch (...) {
    reducer.group().abort();
    throw;
  }
  reducer.broadcast_model(join.root());
}

}  // namespace weft::parallel
