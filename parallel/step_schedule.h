// A step of ranks that all run the whole model, as data: DistributedDataParallel, ZeRO, fully_shard
// and parallelize. What each rank computes and sends, in order. Checked, simulated and drawn as the
// schedules of a pipeline (schedule.h). As text:
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
  /// Messages are started and waited for; of forward and backward these are their sums.
  enum class Phase : std::uint8_t { run, start, wait };
  Kind kind = Kind::forward;
  int unit = 0;  ///< of optimizer: 0
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

/// DistributedDataParallel, each unit a bucket, whose all-reduce starts behind its backward. This
/// and the following throw InvalidArgument for fewer than 1 unit or rank, or too many.
StepSchedule ddp_step(int units, int ranks);

/// DDP with ZeroRedundancyOptimizer: the ranks tell each other the new parameters after the
/// optimiser's step.
StepSchedule zero1_step(int units, int ranks);

/// fully_shard from its second step on, when it knows the order of units. Unit 0 is what is left of
/// the outermost module, whose forward goes on behind the others', as a transformer's head: F0
/// stands twice, and it stays whole between forward and backward. A unit's gather is started before
/// the unit in front of it computes; one reduce-scatter is under way at a time. Without
/// `reshard_after_forward` all units stay whole until their backward is done: ZeRO-2.
StepSchedule fsdp_step(int units, int ranks, bool reshard_after_forward = true);

/// parallelize: units are cut pairs of layers, such as an attention or a perceptron, whose sums are
/// waited for at once. The first unit, a vocabulary's table, has no gradient of its inputs; the
/// last is the head, whose results stay cut, with the loss, which sums numbers of each row. Throws
/// InvalidArgument for fewer than 2 units.
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
    /// Of an F its number in the rank's list, and of a B that of the F to which it belongs.
    int visit;
    /// Of a start or wait its message, which all ranks have in common; else -1.
    int message;
  };
  /// All actions in an order in which they can run one by one.
  std::vector<Turn> order;
  int messages = 0;
  int visits = 0;  ///< the F of a rank
  /// By rank: the most units that were cut and are whole at once, from the start of U to S.
  std::vector<int> peak_whole;
  /// By rank: the most units whose gradients are whole at once, from B to the end of G, or to O.
  std::vector<int> peak_gradients;
};

/// Proves that each unit goes forward and backward, in reverse, that its parameters are whole when
/// it does, that they are gathered once and freed once, that all gradients are summed once and
/// waited for, and that all ranks send the same messages in an order that ends. Throws
/// InvalidArgument with the rank, and the action's number in its list, counted from 1, of both
/// actions that do not fit together.
StepCheck check(const StepSchedule& step);

/// Seconds. Messages by unit; a list may be empty, then they take no time.
struct StepCosts {
  /// Of each F of a rank's list, in its order, and of the B that belongs to it.
  std::vector<double> forward{}, backward{};
  double optimizer = 0;
  std::vector<double> unshard{};            ///< U
  std::vector<double> reduce{};             ///< G or A
  std::vector<double> outputs{}, inputs{};  ///< the messages F and B
  /// Of each message by its number (StepCheck::Turn), in place of these four. Empty: these four.
  std::vector<double> messages{};
  double begin = 0;  ///< when the rank begins
};

/// The same for every F, B and message of that step.
StepCosts equal_costs(const StepSchedule& step, double forward, double backward, double optimizer,
                      double message);

/// A start lasts as long as its message travels, a wait as long as the rank waits.
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
  std::vector<double> waiting;  ///< seconds that it waits for messages: what is exposed of them
};

/// Runs each action as soon as its rank has ended the one before, and messages as soon as all have
/// started them. Throws InvalidArgument for a step that check() refuses, for costs that are
/// negative or not finite, and for lists of the wrong length.
StepTimeline simulate(const StepSchedule& step, const StepCosts& costs);
/// The same, where each rank has its own costs of forward, backward and optimizer. Those of
/// messages are the first rank's.
StepTimeline simulate(const StepSchedule& step, const std::vector<StepCosts>& ranks);

/// For each rank a row of what it computes, and one for each group of messages, as of
/// draw(Timeline), with the unit's number.
std::string draw(const StepTimeline& timeline, double unit = 1, int columns = 80);

}  // namespace weft::parallel
