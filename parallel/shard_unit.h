// ShardUnit: the parameters of a module that are gathered together before they are used, and whose
// gradients are summed and dealt out together.
//
// Each parameter is cut along dimension 0 into n chunks of ceil(rows / n) rows; the last ones may
// be shorter or empty, and are padded. A rank keeps its chunks of all parameters side by side, so
// that they are one message. With a weight of 3 rows, a bias of 2 and two ranks:
//
//   rank 0    | w0 w1 | b0 |        all-gather      | w0 w1 | b0 | w2 -- | b1 |
//   rank 1    | w2 -- | b1 |
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "weft/comm/group/process_group.h"
#include "weft/nn/shard.h"
#include "weft/parallel/fully_shard_stats.h"
#include "weft/parallel/mixed_precision.h"

namespace weft::parallel {

class ShardUnit {
 public:
  struct Piece {
    std::string name;  // within the module
    std::shared_ptr<const nn::Shard> shard;
    std::int64_t offset;        // of the chunk, in elements
    std::int64_t rows;          // of a whole chunk
    Strides strides;            // of rows in a chunk
    const char* why = nullptr;  // for who reads it while it is released
    Tensor gradient = {};       // of the whole parameter, until it is reduced
  };

  /// Cuts what has not been cut of the module, which must be the same on all ranks: it then lists
  /// this rank's parts. The memory of the whole is given back; who reads it is told `name`.
  ShardUnit(const nn::ModuleBase& module, int rank, int size, const MixedPrecisionPolicy& policy,
            std::shared_ptr<void> owner, const std::string& name);
  /// From the next release on.
  void set_name(const std::string& name);

  const std::vector<Piece>& pieces() const { return pieces_; }
  /// Of the whole parameters, and of sums of gradients.
  DType whole_dtype() const { return whole_dtype_; }
  DType sum_dtype() const { return sum_dtype_; }
  /// Whether one of them requires a gradient.
  bool trained() const;
  const FullyShardStats& stats() const { return stats_; }
  bool gathered() const { return gathered_; }
  /// Whether they are, and their parts have not changed since.
  bool up_to_date() const { return gathered_ && version_ == chunk_.storage()->version(); }

  /// Starts to gather the parameters, if that was not done; returns the bytes. All ranks call it.
  std::int64_t start_gather(comm::ProcessGroup& group);
  /// Waits for it; then they are there. If they were there still, they have new values.
  void finish_gather();
  /// Waits for what start_gather() has started, and forgets it: from then on parts may be written.
  void drop_gather();
  /// Gives their memory back, and drops the gather.
  void release();

  /// Adds to the gradient of the i-th parameter.
  void add_gradient(std::size_t i, Tensor gradient);
  bool has_gradients() const;
  /// Starts to sum the gradients of all ranks, divided by their number. Those that are not there
  /// count as zeros.
  void start_reduction(comm::ProcessGroup& group);
  /// Waits for it, takes the mean over the replicas if there are some, and adds the result to the
  /// gradients of this rank's parts.
  void finish_reduction(comm::ProcessGroup* replicas);
  void drop_gradients();

 private:
  struct Message {
    Tensor all, own;
    comm::Work work;
  };
  // Rows of a parameter that begin at an element of `memory`, as a chunk has them.
  static Tensor rows_at(const Tensor& memory, std::int64_t start, std::int64_t rows,
                        const Piece& piece);
  // Calls f(rank, first row, number of rows) for each part that has rows.
  template <class F>
  void for_each_part(const Piece& piece, const F& f) const;

  const int size_;
  std::vector<Piece> pieces_;
  Tensor chunk_;  // this rank's
  DType whole_dtype_ = {}, sum_dtype_ = {};
  bool gathered_ = false;
  // Of chunk_ when it was gathered last, and when the gather was started that is under way.
  std::uint32_t version_ = 0, started_version_ = 0;
  std::optional<Message> gathering_;
  Message reduction_;
  FullyShardStats stats_;
};

}  // namespace weft::parallel
