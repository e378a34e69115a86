// The batches of an epoch, as Recorder::batches() returns them.
#pragma once

#include <iterator>
#include <optional>
#include <utility>

#include "weft/core/base/compiler.h"

namespace weft::train {

/// What Recorder::batches() returns: a range for one for loop. It reports its progress to `Loop`,
/// the recorder.
template <class Loop, class Loader>
class BatchRange {
 public:
  BatchRange(Loop& loop, Loader& loader) : loop_(loop), loader_(loader) {}

  class Iterator {
   public:
    Iterator(Loop& loop, Loader& loader) : loop_(&loop), loader_(&loader) {}
    Iterator(Iterator&& other) noexcept
        : loop_(std::exchange(other.loop_, nullptr)),
          loader_(other.loader_),
          it_(std::move(other.it_)) {
      other.it_.reset();
    }
    Iterator& operator=(Iterator&&) = delete;
    ~Iterator() {
      if (loop_) loop_->leave_epoch();
    }

    auto& operator*() const { return **it_; }
    Iterator& operator++() {
      // After SIGINT it does not take another batch: the loader keeps its position.
      const bool stop = loop_->should_stop();
      if (!stop) {
        loop_->save_when_due();
        ++*it_;
      }
      settle(stop);
      return *this;
    }
    friend bool operator==(const Iterator& it, std::default_sentinel_t) { return !it.it_; }

   private:
    friend class BatchRange;
    void settle(bool stop) {
      if (!stop && it_ && !(*it_ == std::default_sentinel))
        return loop_->note_batch(*loader_, **it_);
      it_.reset();
      std::exchange(loop_, nullptr)->end_epoch(!stop);
    }

    Loop* loop_;
    Loader* loader_;
    std::optional<typename Loader::Iterator> it_;
  };

  Iterator begin() {
    loop_.begin_epoch(loader_.size(), loader_.position(), loader_.dataset().size());
    Iterator it(loop_, loader_);
    const bool stop = loop_.should_stop();
    if (!stop) it.it_.emplace(loader_.begin());
    it.settle(stop);
    return it;
  }
  std::default_sentinel_t end() const { return {}; }

 private:
  Loop& loop_;
  Loader& loader_;
};

}  // namespace weft::train
