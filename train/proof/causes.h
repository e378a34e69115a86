// What the records of a run's ranks say about why it is not a run of one process.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "weft/train/proof/compare.h"
#include "weft/train/proof/records.h"

namespace weft::train::proof {

enum class Weight {
  mistake,  ///< the run is not the run of one process
  limit,    ///< the two cannot be compared
  note      ///< what to know about a run that is right
};

struct Cause {
  std::string name;  ///< for programs: learning_rate, mean_of_means ...
  Weight weight = Weight::mistake;
  std::string text;
};

/// The causes that the ranks' records show, together with their comparison with one process:
///
///   mistakes            what the records show
///   learning_rate       the rate of an optimiser differs between ranks
///   optimizer_option    another option of an optimiser differs, and not the rate
///   unreduced_gradient  ranks have different gradients of a parameter when it is updated
///   unlike_replicas     ranks' weights differ after a step, and none of the above does
///   same_samples        ranks read the same indices in an epoch, beyond padding and chance, and
///                       not of data sets of their own
///   mean_of_means       ranks' batches of a step differ in size, and both sides are equal
///   lost_micro_batch    (by its own function) gradients lack what a micro-batch adds to them
///   dropout_draws       the generators differ, or a Dropout's output is the first tensor that does
///   limits
///   mean_of_means       batches differ in size, and the sides, too, from that step on
///   synced_batch_norm   a batch norm's output is the first tensor that differs
///   local_batch_norm    the same, of ranks or devices that share a batch
///   notes
///   padded_samples      an epoch has more samples than the data set, by less than one a rank
///   equal_draws         ranks' generators are equal, and there is a Dropout
///   local_batch_norm    a batch norm took each rank's own batch
std::vector<Cause> find_causes(const std::vector<Record>& ranks, const std::vector<Record>& one,
                               const Comparison& comparison);

/// A cause if the gradients of the update of `first` that differ lack one and the same micro-batch:
/// they are the sum over the others, perhaps times a factor, as for a mean over the others. The
/// records must be those of a run that has kept the step.
std::optional<Cause> lost_micro_batch(const std::vector<Record>& ranks,
                                      const std::vector<Record>& one, const Difference& first);

}  // namespace weft::train::proof
