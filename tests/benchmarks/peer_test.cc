// What is said of a peer that does not answer.
#include "weft/benchmarks/peer.h"

#include <gtest/gtest.h>

#include <string>

#include "weft/tests/core/expect_error.h"

namespace weft::bench {
namespace {

/// The answer of a shell that has read the request.
nlohmann::json answer_of(const std::string& script) {
  Peer peer({"sh", "-c", "read -r request; " + script});
  return peer.ask({{"cmd", "step"}});
}

TEST(Peer, Answers) { EXPECT_EQ(answer_of("echo '{\"ms\": 1}'"), (nlohmann::json{{"ms", 1}})); }

TEST(Peer, SaysHowItEnded) {
  const std::string request = R"( on {"cmd":"step"})";
  EXPECT_WEFT_ERROR(answer_of("kill -9 $$"), Io, "killed by signal 9 (Killed)" + request);
  // In the middle of an answer, too.
  EXPECT_WEFT_ERROR(answer_of("printf 1; kill -9 $$"), Io, "killed by signal 9 (Killed)" + request);
  EXPECT_WEFT_ERROR(answer_of("exit 3"), Io,
                    "ended with status 3" + request + "; PyTorch's needs torch");
}

TEST(Peer, SaysWhatIsNoAnswer) {
  EXPECT_WEFT_ERROR(answer_of("echo Traceback"), Io,
                    R"(answer to {"cmd":"step"} is no JSON: Traceback)");
}

}  // namespace
}  // namespace weft::bench
