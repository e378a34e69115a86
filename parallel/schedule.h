// Pipeline schedules as data: what each device does, with which stage and micro-batch, in order.
// The same data is checked, executed, simulated (simulate.h) and drawn. As text:
//
//   weft schedule 1f1b stages 2 micro-batches 2
//   0: F0.0 F0.1 B0.0 B0.1   # one device per line, in order; this is a comment
//   1: F1.0 B1.0 F1.1 B1.1
//
// An action is a letter and STAGE.MICRO-BATCH, both counted from 0:
//
//   F  forward                        R  recompute: the forward again, with a tape this time
//   B  backward, or in its place
//   I  the gradients of its inputs    W  and those of its weights
//   >F send the outputs of F          <F receive the inputs of F
//   >B send what B or I made          <B receive what B or I starts from
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "weft/core/base/compiler.h"

namespace weft::parallel {

inline constexpr int kMostStages = 4096;
inline constexpr int kMostMicroBatches = 65536;
inline constexpr int kMostActions = 1'000'000;

struct Action {
  enum class Kind : std::uint8_t {
    forward,
    backward,
    backward_input,
    backward_weight,
    recompute,
    send_activation,
    receive_activation,
    send_gradient,
    receive_gradient,
  };
  Kind kind = Kind::forward;
  int stage = 0;
  int micro_batch = 0;
  friend bool operator==(const Action&, const Action&) = default;
};

/// For example "F0.3".
std::string to_string(const Action& action);

/// A send or a receive.
constexpr bool is_communication(Action::Kind kind) { return kind >= Action::Kind::send_activation; }

/// For a send its receive, which belongs to the neighbouring stage, and for a receive its send.
/// That stage may not exist: the first stage has none before it.
Action counterpart(const Action& action);

/// The actions of each device (or rank), in order. A stage belongs to the device whose list has its
/// actions.
///
/// An action runs when those before it in its list have ended, and
///   F of stage s   when F of stage s - 1 has ended,
///   B or I of s    when B or I of stage s + 1 has ended.
/// A schedule with sends has one for each result that goes to another device; then these two wait
/// for the data instead. Sends and receives themselves are posted and never waited for.
struct Schedule {
  std::string name;  ///< letters, digits and ._-
  int stages = 0;
  int micro_batches = 0;
  std::vector<std::vector<Action>> devices;
  friend bool operator==(const Schedule&, const Schedule&) = default;
};

/// Which micro-batches keep only their inputs after F and are recomputed (R) before their backward:
/// torchgpipe's checkpoint modes.
enum class Recompute { never, except_last, always };

/// For example "except_last".
const char* to_string(Recompute mode);
/// Throws InvalidArgument for another word.
Recompute parse_recompute(std::string_view word);

/// GPipe (Huang et al. 2019) in torchgpipe's order: all forwards, first to last micro-batch, then
/// all backwards, last to first. This and the following: one stage per device; they throw
/// InvalidArgument for sizes below 1 or above the limits.
Schedule gpipe(int stages, int micro_batches, Recompute recompute = Recompute::never);

/// 1F1B (PipeDream-Flush, Narayanan et al. 2021): of p stages stage s runs min(p - s - 1, m)
/// forwards to warm up, then a forward and a backward in turns; backwards first to last. Keeps
/// min(p - s, m) micro-batches.
Schedule one_f_one_b(int stages, int micro_batches, Recompute recompute = Recompute::never);

/// Megatron-LM's interleaved 1F1B (Narayanan et al. 2021): stage s on device s % devices; rounds of
/// micro-batches go through a device's stages one after the other. There are
/// max(1, micro_batches / devices) rounds, as in PyTorch's ScheduleInterleaved1F1B, of equal size
/// or, if the division leaves a rest, the first ones larger by one. With r micro-batches in the
/// first round 2 (devices - d - 1) + (stages_per_device - 1) r forwards warm up device d. One stage
/// per device is 1F1B.
Schedule interleaved_one_f_one_b(int devices, int stages_per_device, int micro_batches,
                                 Recompute recompute = Recompute::never);

/// ZB-H1 (Qi et al. 2023, "Zero Bubble Pipeline Parallelism", arXiv 2401.10241, 2.1): 1F1B whose
/// backward is I and W, and stage s delays each W by s micro-batches. With W no longer than F,
/// and at least as many micro-batches as stages, a device idles (p - 1) (F + I - W), where 1F1B
/// idles (p - 1) (F + I + W). All stages keep min(p, m) micro-batches, as the first of 1F1B does;
/// in stage s all but p - s of them are past I and wait for W.
Schedule zero_bubble_h1(int stages, int micro_batches, Recompute recompute = Recompute::never);

/// ZB-V (Qi et al. 2023, arXiv 2401.10241, 6; V-ZB in arXiv 2405.15362): of p devices, device d has
/// the stages d and 2 p - 1 - d, so that the model goes down the devices and up again, a V.
/// Backwards are I and W, as in PyTorch's ScheduleZBVZeroBubble. With at least 2 p - 1
/// micro-batches, and F, I and W of the same time for every stage, no device waits between its
/// first and its last action, and each keeps 2 p micro-batches of a stage.
Schedule zero_bubble_v(int devices, int micro_batches, Recompute recompute = Recompute::never);

/// DualPipeV, as in PyTorch's ScheduleDualPipeV: DualPipe (DeepSeek-AI 2024, arXiv 2412.19437) cut
/// in half (Sea AI Lab 2025, huggingface.co/blog/ufotalent/cut-in-half). Stages as in
/// zero_bubble_v; most backwards are whole. The pairs of F and B that DualPipe runs at once are
/// here an F and then a B. With equal times device d waits (p - 1 - d) F between its first and last
/// action; each keeps 2 p + 1 micro-batches of a stage. Throws InvalidArgument for fewer than 2 p
/// micro-batches.
Schedule dual_pipe_v(int devices, int micro_batches, Recompute recompute = Recompute::never);

/// "gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "dualpipev"
const std::vector<std::string>& schedule_names();

/// How many stages a device has in the schedule of that name: 1 or 2; "interleaved" also takes
/// other numbers. Throws InvalidArgument for a name that is not known.
int stages_per_device(const std::string& name);

/// Makes a schedule by name. `devices`: 0 means one per stage, or per two for "zb-v" and
/// "dualpipev". Only "interleaved" accepts another number, which must divide `stages`. Throws
/// InvalidArgument.
Schedule make_schedule(const std::string& name, int stages, int micro_batches,
                       Recompute recompute = Recompute::never, int devices = 0);

/// The schedule with a send after each action whose result goes to another device, and a receive
/// before each action that needs it. Gradients are received before the recompute, to travel during
/// it. Throws InvalidArgument for a schedule that check() refuses or that has sends already.
Schedule with_communication(const Schedule& schedule);

/// The text above, without comments. Throws InvalidArgument for a name that cannot be read back.
std::string to_string(const Schedule& schedule);

/// Reads such a text: parse_schedule(to_string(s)) == s. Throws InvalidArgument with line and
/// column, also for a stage or micro-batch out of range; the rest is check()'s.
Schedule parse_schedule(std::string_view text);

/// Reads a file and checks it. Throws Io, or InvalidArgument with line and column.
Schedule load_schedule(const std::string& path);

struct ScheduleCheck {
  struct Step {
    Action action;
    int device;
    int after;  ///< index of a step of another device that must end before; -1: none
  };
  /// All actions in an order in which they can run one by one.
  std::vector<Step> order;
  std::vector<int> device_of_stage;
  /// By stage: the most micro-batches whose activations are kept at once, from F (of those that are
  /// recomputed: R) to B or W.
  std::vector<int> peak_activations;
  /// By stage: the most micro-batches that keep only their inputs at once, from F to R.
  std::vector<int> peak_inputs;
  /// By device: as peak_activations, for all its stages together.
  std::vector<int> peak_device_activations;
};

/// Proves that every micro-batch goes forward and backward through every stage once, that no action
/// comes before one that it needs, that each send has its receive, and that there is no deadlock.
/// Throws InvalidArgument with the device, and the action's number in its list, counted from 1.
ScheduleCheck check(const Schedule& schedule);

}  // namespace weft::parallel
