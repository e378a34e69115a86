#include "weft/benchmarks/own_gloo.h"

#include <gloo/allreduce.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/allreduce_ring_chunked.h>
#include <gloo/barrier.h>
#include <gloo/barrier_all_to_all.h>
#include <gloo/config.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

#include <chrono>

#include "weft/core/base/error.h"

namespace weft::bench {
namespace {

using Context = std::shared_ptr<gloo::Context>;
using Algorithm = gloo::AllreduceOptions::Algorithm;

class NewApi final : public OwnGloo {
 public:
  NewApi(Context context, Algorithm algorithm)
      : context_(std::move(context)), algorithm_(algorithm) {}

  void barrier() override {
    gloo::BarrierOptions options(context_);
    gloo::barrier(options);
  }

  void all_reduce(float* x, std::int64_t count) override {
    gloo::AllreduceOptions options(context_);
    options.setAlgorithm(algorithm_);
    options.setOutput(x, static_cast<std::size_t>(count));
    options.setReduceFunction([](void* sum, const void* a, const void* b, std::size_t n) {
      gloo::sum<float>(sum, a, b, n);
    });
    gloo::allreduce(options);
  }

 private:
  const Context context_;
  const Algorithm algorithm_;
};

/// The older algorithms are made for one buffer; this takes longer than a run.
template <class Reduce>
class OldApi final : public OwnGloo {
 public:
  explicit OldApi(Context context)
      : context_(std::move(context)), barrier_(std::make_unique<gloo::BarrierAllToAll>(context_)) {}

  void barrier() override { barrier_->run(); }

  void all_reduce(float* x, std::int64_t count) override {
    if (x != x_ || count != count_) {
      reduce_.reset();
      reduce_ = std::make_unique<Reduce>(context_, std::vector<float*>{x}, static_cast<int>(count));
      x_ = x;
      count_ = count;
    }
    reduce_->run();
  }

 private:
  const Context context_;
  const std::unique_ptr<gloo::Algorithm> barrier_;
  std::unique_ptr<Reduce> reduce_;
  float* x_ = nullptr;
  std::int64_t count_ = 0;
};

Context connect(const std::string& folder, int rank, int ranks) {
  auto context = std::make_shared<gloo::rendezvous::Context>(rank, ranks);
  context->setTimeout(std::chrono::seconds(60));
  gloo::rendezvous::FileStore store(folder);
  auto device = gloo::transport::tcp::CreateDevice("127.0.0.1");
  try {
    context->connectFullMesh(store, device);
  } catch (const std::exception& error) {
    WEFT_THROW(Comm, "bench", "Gloo's ranks cannot connect: ", error.what());
  }
  return context;
}

}  // namespace

std::vector<std::string> own_gloo_algorithms() {
  return {"ring", "bcube", "halving-doubling", "ring chunked"};
}

std::string gloo_version() {
  return detail::concat(GLOO_VERSION_MAJOR, '.', GLOO_VERSION_MINOR, '.', GLOO_VERSION_PATCH);
}

std::unique_ptr<OwnGloo> make_own_gloo(const std::string& algorithm, const std::string& folder,
                                       int rank, int ranks) {
  Context context = connect(folder, rank, ranks);
  if (algorithm == "ring") return std::make_unique<NewApi>(context, Algorithm::RING);
  if (algorithm == "bcube") return std::make_unique<NewApi>(context, Algorithm::BCUBE);
  if (algorithm == "ring chunked") {
    return std::make_unique<OldApi<gloo::AllreduceRingChunked<float>>>(context);
  }
  // Synchronous mode saves a thread switch: a third of the time of a small buffer.
  for (int r = 0; r < ranks; ++r) {
    if (r != rank) context->getPair(r)->setSync(true, false);
  }
  return std::make_unique<OldApi<gloo::AllreduceHalvingDoubling<float>>>(context);
}

}  // namespace weft::bench
