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

#include <algorithm>
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
    std::int64_t offset;        // where it begins in the chunk, in elements
    std::int64_t rows;          // in a full chunk
    Strides strides;            // of rows in a chunk
    const char* why = nullptr;  // the error for reading it while it is released
    Tensor gradient = {};       // of the whole parameter, before the reduction
    bool kept = false;          // keep_gradients() was called since the last reduction
    bool trained() const { return shard->part.requires_grad(); }
    bool reduced() const { return kept || trained(); }
  };

  /// Cuts the module's parameters that are not cut yet; they must be the same on all ranks. The
  /// module then lists this rank's parts. The whole parameters' memory is freed; errors for reading
  /// them name `name`.
  ShardUnit(const nn::ModuleBase& module, int rank, int size, const MixedPrecisionPolicy& policy,
            std::shared_ptr<void> owner, const std::string& name);
  /// Takes effect at the next release.
  void set_name(const std::string& name);

  const std::vector<Piece>& pieces() const { return pieces_; }
  /// The dtypes of the whole parameters and of sums of gradients.
  DType whole_dtype() const { return whole_dtype_; }
  DType sum_dtype() const { return sum_dtype_; }
  /// Whether a parameter requires a gradient; whether one does, or did in keep_gradients().
  bool trained() const { return any(&Piece::trained); }
  bool reduces() const { return any(&Piece::reduced); }
  const FullyShardStats& stats() const { return stats_; }
  bool gathered() const { return gathered_; }
  /// Whether they are gathered, and their parts have not changed since.
  bool up_to_date() const { return gathered_ && version_ == chunk_.storage()->version(); }

  /// Starts to gather the parameters unless that was done; returns the bytes. All ranks call it.
  std::int64_t start_gather(comm::ProcessGroup& group);
  /// Waits for a started gather. Then parameters are whole, with the parts' values at its start.
  void finish_gather();
  /// Waits for a gather that was started, and discards it: after that, parts may be written.
  void drop_gather();
  /// Frees the whole parameters' memory, and drops a started gather.
  void release();

  /// Adds to the gradient of the i-th parameter.
  void add_gradient(std::size_t i, Tensor gradient);
  bool has_gradients() const { return any(&Tensor::defined, &Piece::gradient); }
  /// They wait for the next reduction, which takes them even if they are frozen by then.
  void keep_gradients() {
    for (Piece& piece : pieces_) piece.kept = piece.reduced();
  }
  /// Starts to average the gradients over all ranks. Missing gradients count as zeros.
  void start_reduction(comm::ProcessGroup& group);
  /// Waits for the reduction, takes the mean over the replicas, if any, and adds the result to the
  /// gradients of this rank's parts.
  void finish_reduction(comm::ProcessGroup* replicas);
  void drop_gradients();

 private:
  struct Message {
    Tensor all, own;
    comm::Work work;
  };
  // A view of `memory` from an element on: rows of a parameter as a chunk has them.
  static Tensor rows_at(const Tensor& memory, std::int64_t start, std::int64_t rows,
                        const Piece& piece);
  bool any(auto is, auto... of) const { return std::ranges::any_of(pieces_, is, of...); }
  // Calls f(rank, first row, number of rows) for each part that has rows.
  template <class F>
  void for_each_part(const Piece& piece, const F& f) const;

  const int size_;
  std::vector<Piece> pieces_;
  Tensor chunk_;  // this rank's
  DType whole_dtype_ = {}, sum_dtype_ = {};
  bool gathered_ = false;
  // Versions of chunk_: when it was gathered last, and when the present gather was started.
  std::uint32_t version_ = 0, started_version_ = 0;
  std::optional<Message> gathering_;
  Message reduction_;
  FullyShardStats stats_;
};

}  // namespace weft::parallel
