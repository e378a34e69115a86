// Ranks without a launcher: a program that starts itself anew as each of them.
#pragma once

#include <functional>

namespace weft::launch {

/// Runs fn(rank) in `nprocs` new processes of this program, ranks 0 to nprocs - 1, and returns when
/// all have ended well. They are started and watched as weftrun does it (launcher.h), so in `fn`
/// comm::init_process_group() knows where to go; another address works as well.
///   int main(int argc, char** argv) {
///     launch::spawn(argc, argv, 2, [](int rank) {
///       auto group = comm::init_process_group();
///       ...
///     });
///   }
/// A child is this program from its beginning, with the same arguments: it comes to this call by
/// the way its parent came, runs `fn` here and exits. So what is done before the call is done
/// nprocs + 1 times, and a second call must come in the children as well; what comes after the call
/// is not done in them, but that a Tracer of the calling thread finishes. To be called from one
/// thread, before the program starts others.
///
/// Throws what the first rank threw that failed (Library: an exception that is no Error), with
/// "rank r" in its text, PeerFailed when it ended otherwise, by a signal for instance. The text of
/// a Timeout begins with the rank that did not respond, if that is known. A signal that came
/// meanwhile (SIGINT, SIGTERM, SIGHUP, SIGQUIT) has been passed on; it is raised here when the
/// ranks have ended.
void spawn(int argc, const char* const* argv, int nprocs, const std::function<void(int rank)>& fn);

}  // namespace weft::launch
