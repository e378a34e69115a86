// A training step as data, for ranks that all run the whole model: DistributedDataParallel, ZeRO,
// fully_shard and parallelize. It lists what each rank computes and sends, in order, and is
// checked, simulated and drawn like the schedules of a pipeline (schedule.h). As text:
//
//   weft step fsdp units 2
//   0: >U0 <U0 >U1 F0 <U1 F1 S1 F0 B0 >U1 <U1 B1 S1 >G1 B0 S0 <G1 >G0 <G0 O
//   1: >U0 <U0 >U1 F0 <U1 F1 S1 F0 B0 >U1 <U1 B1 S1 >G1 B0 S0 <G1 >G0 <G0 O   # the other rank
//
// A unit is a part of the model whose parameters or gradients travel together, such as a unit of
// fully_shard or a bucket. Units count from 0, in the order of forward:
//
//   F1 forward   B1 backward   O the optimiser's step
//   S1 frees the parameters, but for this rank's part: reshard
//
// Messages of all ranks, which >  starts and < waits for:
//
//   U  gathers the parameters: unshard
//   G  sums gradients, a part for each rank: reduce (reduce-scatter)
//   A  sums gradients, of a bucket, for all ranks: all-reduce
//   F  sums what forward has made, for all ranks, and B what backward has made for its inputs
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "weft/parallel/schedule.h"

namespace weft::parallel {

struct StepAction {
  enum class Kind : std::uint8_t {
    forward,
    backward,
    optimizer,
    reshard,
    unshard,
    reduce,
    all_reduce,
  };
  /// Messages are started and waited for; for forward and backward that means the sums of their
  /// results.
  enum class Phase : std::uint8_t { run, start, wait };
  Kind kind = Kind::forward;
  int unit = 0;  ///< 0 for optimizer
  Phase phase = Phase::run;
  friend bool operator==(const StepAction&, const StepAction&) = default;
};

/// For example "F0", ">U1", "O".
std::string to_string(const StepAction& action);

/// The actions of each rank, in order. Messages of one of the groups {U}, {G, A} and {F, B} begin
/// in the order in which they are started, one at a time, when all ranks have started them; the
/// groups do not wait for each other.
struct StepSchedule {
  std::string name;  ///< letters, digits and ._-
  int units = 0;
  std::vector<std::vector<StepAction>> ranks;
  friend bool operator==(const StepSchedule&, const StepSchedule&) = default;
};

/// DistributedDataParallel, each unit a bucket, whose all-reduce starts after its backward. This
/// and the following throw InvalidArgument for fewer than 1 unit or rank, or too many.
StepSchedule ddp_step(int units, int ranks);

/// DDP with ZeroRedundancyOptimizer: after the optimiser's step the ranks send each other the new
/// parameters.
StepSchedule zero1_step(int units, int ranks);

/// fully_shard from its second step on, when it knows the order of units. Unit 0 has the outermost
/// module's own parameters. Its forward begins before the other units' and ends after them, as a
/// transformer's embedding and head do: so F0 stands twice, and the unit stays whole between
/// forward and backward. A unit's gather is started before the unit in front of it computes; one
/// reduce-scatter is under way at a time. Without `reshard_after_forward` all units stay whole
/// until their backward is done: ZeRO-2.
StepSchedule fsdp_step(int units, int ranks, bool reshard_after_forward = true);

/// parallelize: a unit is a pair of cut layers, such as an attention or a perceptron, and its sums
/// are waited for at once. The first unit, a vocabulary's table, has no gradient of its inputs. The
/// last is the head with the loss: its results stay cut, and the loss sums some numbers for each
/// row. Throws InvalidArgument for fewer than 2 units.
StepSchedule tensor_parallel_step(int units, int ranks);

/// "ddp", "zero1", "zero2", "fsdp", "tp"
const std::vector<std::string>& step_names();

/// Makes a step by name. Throws InvalidArgument.
StepSchedule make_step(const std::string& name, int units, int ranks);

/// The text above, without comments. Throws InvalidArgument for a name that cannot be read back.
std::string to_string(const StepSchedule& step);

/// Reads such a text: parse_step(to_string(s)) == s. Throws InvalidArgument with line and column.
StepSchedule parse_step(std::string_view text);

/// Reads a file that begins with "weft schedule" or "weft step", and checks it. Throws Io, or
/// InvalidArgument with line and column.
std::variant<Schedule, StepSchedule> load_any_schedule(const std::string& path);

struct StepCheck {
  struct Turn {
    StepAction action;
    int rank;
    /// For an F: its number among the F of the rank's list. For a B: the number of its F.
    int visit;
    /// For a start or a wait: the number of its message, the same on all ranks. Else -1.
    int message;
  };
  /// All actions in an order in which they can run one by one.
  std::vector<Turn> order;
  int messages = 0;
  int visits = 0;  ///< the number of F of a rank
  /// By rank: the most cut units that are whole at once, from the start of their U to their S.
  std::vector<int> peak_whole;
  /// By rank: the most units that have whole gradients at once, from B to the end of G, or to O.
  std::vector<int> peak_gradients;
};

/// Proves that each unit goes forward and, in reverse order, backward; that its parameters are
/// whole then; that they are gathered once and freed once; that all gradients are summed once and
/// waited for; and that all ranks send the same messages, in an order without deadlock. Throws
/// InvalidArgument with the rank, and the action's number in its list, counted from 1, of both
/// actions that do not fit together.
StepCheck check(const StepSchedule& step);

/// Seconds. Messages by unit; a list may be empty, then they take no time.
struct StepCosts {
  /// For each F of a rank's list, in order, and for the B that belongs to it.
  std::vector<double> forward{}, backward{};
  double optimizer = 0;
  std::vector<double> unshard{};            ///< U
  std::vector<double> reduce{};             ///< G or A
  std::vector<double> outputs{}, inputs{};  ///< the messages F and B
  /// For each message, by its number (StepCheck::Turn), in place of these four lists. Empty: these
  /// four.
  std::vector<double> messages{};
  double begin = 0;  ///< when the rank begins
};

/// The same costs for every F, B and message of that step.
StepCosts equal_costs(const StepSchedule& step, double forward, double backward, double optimizer,
                      double message);

/// A start lasts until its message has arrived, a wait as long as the rank waits.
struct TimedStepAction {
  StepAction action;
  int rank = 0;
  double begin = 0;
  double end = 0;
};

struct StepTimeline {
  std::vector<TimedStepAction> actions;  ///< in order per rank
  double end = 0;
  std::vector<double> busy;     ///< seconds that a rank computes
  std::vector<double> waiting;  ///< seconds that it waits for messages: their exposed part
};

/// Runs each action as soon as its rank has ended the one before, and each message as soon as all
/// ranks have started it. Throws InvalidArgument for a step that check() refuses, for costs that
/// are negative or not finite, and for lists of the wrong length.
StepTimeline simulate(const StepSchedule& step, const StepCosts& costs);
/// The same, with costs of forward, backward and optimizer for each rank. The costs of messages are
/// the first rank's.
StepTimeline simulate(const StepSchedule& step, const std::vector<StepCosts>& ranks);

/// For each rank a row for what it computes and one for each group of messages, like the rows of
/// draw(Timeline), with the unit's number.
std::string draw(const StepTimeline& timeline, double unit = 1, int columns = 80);

}  // namespace weft::parallel
