// A program with macros of its own that uses most templates of the headers. It is only compiled,
// with all warnings, and its macros must still be defined afterwards.
#define X 1
#define CHECK 2
#define LOG 3
#include "weft/train/train.h"
#include "weft/weft.h"
#if X != 1 || CHECK != 2 || LOG != 3
#error "a header has taken a macro away"
#endif
#undef X
#undef CHECK
#undef LOG

using namespace weft;

struct Pair {
  Tensor first, second;
  auto tensors() { return std::tie(first, second); }
  auto tensors() const { return std::tie(first, second); }
};

struct Net : nn::Module<Net> {
  nn::Linear fc = child("fc", nn::Linear(4, 4));
  nn::ModuleList<nn::Linear> list =
      child("list", nn::ModuleList<nn::Linear>{nn::Linear(4, 4), nn::Linear(4, 4)});
  nn::MultiheadAttention attention = child("attention", nn::MultiheadAttention(4, 2));
  nn::Sequential rest = child("rest", nn::Sequential{nn::BatchNorm1d(4), nn::ReLU()});
  nn::Parameter scale = parameter("scale", ones({4}));
  Tensor forward(const Tensor& x) const {
    Tensor y = fc(x);
    for (const nn::Linear& each : list) y = each(y);
    return rest(attention(list[0](y))) * scale;
  }
};

// As in programs whose authors do not use const.
struct Several : nn::Module<Several> {
  Net net = child("net", Net());
  Pair forward(const Tensor& a, const Tensor& b) { return {net(a), net(b)}; }
};
static_assert(std::is_invocable_v<const Net&, Tensor>);
static_assert(!std::is_invocable_v<const Several&, Tensor, Tensor>);

struct Twice : autograd::Function<Twice> {
  static Tensor forward(autograd::Context& context, const Tensor& x) {
    context.save_for_backward({x});
    return x * 2;
  }
  static std::vector<Tensor> backward(autograd::Context&, std::span<const Tensor> grads) {
    return {grads[0] * 2};
  }
};

struct Images {
  Tensor x, label;
  auto tensors() { return std::tie(x, label); }
};

struct Squares {
  std::int64_t size() const { return 8; }
  Images get_batch(std::span<const std::int64_t> indices) const {
    const Tensor x = from_span(indices, {std::ssize(indices)});
    return {x, x * x};
  }
};

template <class Model>
double losses(Model& model, const Tensor& x, const Tensor& y) {
  optim::SGD sgd(model.parameters(), {.lr = 0.1, .momentum = 0.9});
  sgd.zero_grad();
  const Tensor loss = nn::mse_loss(model(x), y);
  loss.backward();
  sgd.step();
  return loss.item<double>() + static_cast<double>(loss.to_vector<float>()[0]);
}

void data_sets() {
  const data::Subset<Squares> part(Squares(), {1, 2, 3});
  const data::AnyDataset<Images> any(part);
  auto halves = data::random_split(any, {.lengths = {2, 1}});
  data::DataLoader loader(data::ConcatDataset(part, any, Squares()), {.batch_size = 2});
  for (auto& [x, y] : loader) x.add_(y);
  data::DataLoader tensors(data::TensorDataset(ones({4}), ones({4, 2})), {.batch_size = 2});
  for (auto& batch : tensors) for_each_tensor(batch, [](const Tensor& x) { x.zero_(); });
}

void models(const Tensor& x) {
  Net net;
  losses(net, x, x);
  const Net copy = nn::clone(net);
  Several several = nn::replicate(Several(), Device());
  const Pair pair = map_tensors(several(copy(x), x), [](const Tensor& y) { return y + 1; });
  const Tensor y = autograd::checkpoint([&](const Tensor& z) { return net(z); }, pair.first);
  const ValuesAndIndices most = Twice::apply(y).max(1);
  nn::AnyModule stage = nn::pass_through(several, 1);
  stage(std::vector{most.values, x, x});
  net.apply([](nn::ModuleBase& module) { module.to(DType::f64); });
  std::ostringstream() << nn::summary(net, {2, 4}).to_string() << x << net;
  WEFT_CHECK(x.defined(), InvalidArgument, "models", "x: ", x.shape());
  within("models", [&] { return graph::capture([&] { x.add_(y); }); })();
}

void in_parallel(const Tensor& x, comm::ProcessGroup& group) {
  Net net;
  parallel::DataParallel replicas(net);
  losses(replicas.module(), x, replicas(x));
  parallel::DistributedDataParallel ddp(net, group);
  ddp(x).sum().backward();
  const std::vector<Device> devices(2);
  parallel::gather(parallel::scatter(Pair{x, x}, devices), Device());
  parallel::Pipeline pipeline({nn::Sequential{net}, nn::ReLU()});
  pipeline(x);
  const parallel::Horovod horovod(group);
  parallel::DistributedOptimizer adam(horovod, optim::Adam(net.parameters()),
                                      net.named_parameters());
  adam.step();
}

double trained(const train::Options& options) {
  nn::Sequential model{nn::Flatten(), nn::Linear(784, 10)};
  optim::Adam adam(model.parameters());
  data::DataLoader loader(data::Mnist(), options.loader());
  train::Recorder recorder(options);
  recorder.resume(model, loader, adam);
  train::Step step(options, std::function([&](const Tensor& x, const Tensor& label) {
                     return nn::cross_entropy(model(x), label);
                   }));
  for (auto& [x, label] : recorder.batches(loader)) recorder.step(step(x, label));
  recorder.save(model, loader, adam);
  recorder.finish(model, "accuracy", train::accuracy(model, loader));
  return train::top_accuracy(model, loader, {1, 5})[1];
}
