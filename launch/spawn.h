// Ranks without a launcher: a program starts itself again as each of them.
#pragma once

#include <functional>

#include "weft/core/base/compiler.h"

namespace weft::launch {

/// Runs fn(rank) in `nprocs` new processes of this program, ranks 0 to nprocs - 1, and returns when
/// all have ended well. They are started and watched as by weftrun, so in `fn`
/// comm::init_process_group() knows where the ranks meet; another address works, too.
///   int main(int argc, char** argv) {
///     launch::spawn(argc, argv, 2, [](int rank) {
///       auto group = comm::init_process_group();
///       ...
///     });
///   }
/// A child runs this program from its beginning, with the same arguments: it takes the same way to
/// this call, runs `fn` here and exits. So code before the call runs nprocs + 1 times, and the
/// children must reach a second call, too. Code after the call does not run in them, except that a
/// Tracer of the calling thread finishes. To be called from one thread, before the program starts
/// others.
///
/// Throws the exception of the first rank that failed (as Library if it is no Error), with "rank r"
/// in its text, or PeerFailed if the rank ended without an exception, for example by a signal. The
/// text of a Timeout begins with the rank that did not respond, if known. A signal that comes
/// meanwhile (SIGINT, SIGTERM, SIGHUP, SIGQUIT) is passed on to the ranks, and raised here when
/// they have ended.
void spawn(int argc, const char* const* argv, int nprocs, const std::function<void(int rank)>& fn);

}  // namespace weft::launch
