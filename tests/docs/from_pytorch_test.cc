// Checks that the code on docs/from_pytorch.md compiles: its program is side_by_side.cc, and each
// weft name in its tables is used here.
#include <gtest/gtest.h>

#include <regex>
#include <set>
#include <sstream>

#include "weft/tests/io/files.h"
#include "weft/tests/tensor/ramp.h"
#include "weft/tests/tensor/tensor_util.h"
#include "weft/weft.h"

namespace weft {
namespace {

#include "weft/tests/docs/in_place_of.inc"

// Uses everything once, so that removing a name breaks the build; other tests check what the
// functions do.
[[maybe_unused]] void tensors() {
  std::vector<float> memory(6);
  Tensor x = borrow(std::span(memory), {2, 3});
  x = from_dlpack(to_dlpack(x));
  x = tensor({1, 2}), x = from_vector(memory, {2, 3}), x = scalar(1);
  x = empty({2}), x = zeros({2}), x = ones({2}), x = full({2}, 1), x = arange(0, 3), x = eye(2);
  x = linspace(0, 1, 3), x = full_like(x, 1), x = rand_like(x), x = randn_like(x);
  x = empty_like(x), x = zeros_like(x), x = ones_like(x);
  x = rand({2}), x = randn({2}), x = randperm(2), x = bernoulli({2}, 0.5), x = uniform({2}, 0, 1);
  x = multinomial(x, 1);
  x = randint(0, 9, {2});
  manual_seed(0);
  Generator& generator = default_generator();
  generator.manual_seed(1);
  x.shape(), static_cast<void>(x.dim()), static_cast<void>(x.numel()), x.dtype(), x.device(),
      x.strides();
  x.to(DType::f64).clone().contiguous().detach().item<double>(), x.to_vector<float>();
  x.reshape({-1}).flatten().unflatten(0, {1, -1}).transpose(0, 1).t().permute({1, 0});
  x.squeeze().unsqueeze(0).expand({2, -1});
  x.slice(0, 0, 1), x.narrow(0, 0, 1), x.select(0, 0), x[0];
  index_select(x, 0, x), gather(x, 0, x), one_hot(x);
  raw::index_add_(x, 0, x, x), raw::scatter_add_(x, 0, x, x);
  x[x], masked_select(x, x), masked_fill(x, x, 0), masked_fill(x, x, x), x.repeat({2}), x.flip({0}),
      x.roll(1);
  x.tril(), x.triu(), pad(x, {1, 1});
  cat({x, x}), stack({x, x}), split(x, 1), chunk(x, 2);
  add(x, x), sub(x, x), mul(x, x), div(x, x), pow(x, 2), maximum(x, x), minimum(x, x);
  remainder(x, x), floor_divide(x, 2), x % 2, x.abs(), x.exp(), x.sqrt(), x.add(x), x.lt(1);
  clamp(x, 0, 1), clamp(x, 0), clamp(x, x, x), clamp_min(x, x), clamp_max(x, x), x.clamp({}, 1),
      where(x, x, x);
  neg(x), abs(x), sign(x), square(x), sqrt(x), rsqrt(x), reciprocal(x), exp(x), log(x), sin(x);
  cos(x), floor(x), ceil(x), round(x), trunc(x), log1p(x), expm1(x), erf(x), tan(x);
  isnan(x), isinf(x), isfinite(x), isclose(x, x), allclose(x, x), equal(x, x);
  eq(x, x), ne(x, x), lt(x, x), le(x, x), gt(x, x), ge(x, x);
  logical_and(x, x), logical_or(x, x), logical_xor(x, x), logical_not(x);
  sum(x), mean(x), prod(x), max(x), min(x), var(x), norm(x), all(x), any(x);
  weft::std(x), x.std(), logsumexp(x), x.max(), x.min({0}), argmax(x), argmin(x, 0);
  auto [values, indices] = x.max(0);
  values = max(x, 0).values, indices = min(x, 1).indices;
  values = sort(x).values, indices = argsort(x), values = topk(x, 1).values;
  cumsum(x, 0), cumprod(x, 0), median(x), values = median(x, 0).values;
  searchsorted(x, x), bincount(x), nonzero(x), x = unique(x).values;
  index_add(x, 0, x, x), scatter_add(x, 0, x, x), scatter(x, 0, x, x), x.scatter_(0, x, 1);
  matmul(x, x), dot(x, x), outer(x, x), einsum("ij,jk", x, x);
  x.view(-1), x.unfold(0, 1, 1), x.diagonal(), x.diag(), x.unbind(), meshgrid({x, x});
  x.repeat_interleave(2), normal(0, 1, {2}), fmod(x, 2), addcmul(x, x, x), addcdiv(x, x, x);
  clamp_min(x, 0), clamp_max(x, 1), amax(x, 0), amin(x), p_norm(x, 1), std_mean(x), var_mean(x);
  x.clamp_(0, 1).clamp_min_(0).clamp_max_(1).masked_fill_(x, 0).addcmul_(x, x).addcdiv_(x, x);
  x.exp_(), x[0] = 5.0, x += 1.0, x = (x > 0), x = tensor({{1, 2}, {3, 4}}), x = arange(0, 1, 0.25);
  x.copy_(x), x.fill_(0), x.zero_(), x.add_(x), x.sub_(x), x.mul_(x), x.div_(x);
}

struct Twice : autograd::Function<Twice> {
  static Tensor forward(autograd::Context&, const Tensor& x) { return x * 2; }
  static std::vector<Tensor> backward(autograd::Context&, std::span<const Tensor> grads) {
    return {grads[0] * 2};
  }
};

[[maybe_unused]] void tape() {
  Tensor x = ones({1}).set_requires_grad();
  x.set_grad(x), x.grad(), x.is_leaf(), x.backward();
  autograd::backward(std::span(&x, 1)), autograd::grad(std::span(&x, 1), std::span(&x, 1));
  const NoGrad no_grad;
  const EnableGrad enable_grad;
  Twice::apply(x);
  autograd::gradcheck("twice", [](auto inputs) { return inputs[0] * 2; }, {x});
  autograd::gradgradcheck(
      "twice", [](auto inputs) { return std::vector{inputs[0] * 2}; }, std::span(&x, 1));
  autograd::gradgradcheck("twice", [](auto inputs) { return inputs[0] * 2; }, {x});
  x.backward({}, false, true), autograd::grad(x, x, {.create_graph = true});
  autograd::add_grad_hook(x, [](const Tensor&) { return Tensor(); });
  autograd::add_leaf_hook(x, [](const Tensor&) {});
  autograd::checkpoint([](const Tensor& t) { return t * 2; }, x);
  const Tracer tracer;
}

[[maybe_unused]] void modules() {
  struct Net : nn::Module<Net> {
    Tensor forward(const Tensor& x) { return x; }
  } net;
  net.parameters(), net.named_parameters(), net.named_buffers(), net.parameter_count();
  net.apply([](nn::ModuleBase&) {});
  net.train(), net.eval(), net.is_training(), net.to(DType::f32), net.zero_grad();
  net.requires_grad(true), net.load_state_dict(net.state_dict());
  nn::HookHandle hook = net.register_forward_hook([](nn::ModuleBase&, std::span<Tensor>) {});
  net.register_forward_error_hook([](nn::ModuleBase&) {});
  hook = net.register_forward_pre_hook([](nn::ModuleBase&, std::span<Tensor>) {});
  nn::clone(net), nn::replicate(net, "cpu"), net.to_string(), to_string(net), nn::summary(net, {1});
  nn::Sequential{nn::Identity(),
                 nn::Linear(1, 1),
                 nn::Conv1d(1, 1, 1),
                 nn::Conv2d(1, 1, 1),
                 nn::ConvTranspose2d(1, 1, 1),
                 nn::MaxPool2d(1),
                 nn::Unfold(1),
                 nn::Fold(1, 1),
                 nn::AvgPool2d(1),
                 nn::AdaptiveAvgPool2d(1),
                 nn::AdaptiveMaxPool2d(1),
                 nn::Upsample({.scale_factor = {2}}),
                 nn::InstanceNorm2d(1),
                 nn::ZeroPad2d(1),
                 nn::ReflectionPad2d(1),
                 nn::PixelShuffle(1),
                 nn::BatchNorm2d(1),
                 nn::BatchNorm1d(1),
                 nn::LayerNorm(1),
                 nn::GroupNorm(1, 1),
                 nn::Dropout(),
                 nn::Dropout2d(),
                 nn::ReLU(),
                 nn::LeakyReLU(),
                 nn::PReLU(),
                 nn::ReLU6(),
                 nn::Hardswish(),
                 nn::Hardsigmoid(),
                 nn::GELU(),
                 nn::SiLU(),
                 nn::ELU(),
                 nn::Softplus(),
                 nn::Tanh(),
                 nn::Sigmoid(),
                 nn::Softmax(1),
                 nn::LogSoftmax(1),
                 nn::Flatten(),
                 nn::Unflatten(1, {1})};
  nn::ModuleList<>{nn::Identity()};
  nn::MaxPool2dWithIndices(1), nn::MaxUnpool2d(1);
  nn::Embedding(1, 1), nn::MultiheadAttention(1, 1);
  nn::ModuleDict<>{{"a", nn::Identity()}};
  nn::ParameterList{ones({1})}, nn::ParameterDict{{"a", ones({1})}};
  nn::EmbeddingBag(1, 1), nn::TransformerEncoder(nn::TransformerEncoderLayer(1, 1), 1);
  nn::RNN(1, 1), nn::LSTM(1, 1), nn::GRU(1, 1);
  nn::RNNCell(1, 1), nn::LSTMCell(1, 1), nn::GRUCell(1, 1);
  nn::ExponentialMovingAverage(net, 0.9);
}

[[maybe_unused]] void functions() {
  const Tensor x;
  relu(x), leaky_relu(x), silu(x), elu(x), softplus(x);
  gelu(x), gelu_tanh(x), tanh(x), sigmoid(x), log_sigmoid(x);
  softmax(x, 1), log_softmax(x, 1), linear(x, x), conv2d(x, x), conv_transpose2d(x, x);
  nn::prelu(x, x), nn::relu6(x), nn::hardswish(x), nn::hardsigmoid(x);
  max_pool2d_with_indices(x, {}), adaptive_max_pool2d_with_indices(x, {1, 1});
  nn::max_unpool2d(x, x, 1);
  conv2d(x, x, x, "same"), unfold(x, {.kernel = {3, 3}}), fold(x, {1, 1}, {});
  max_pool2d(x, {}), avg_pool2d(x, {}), adaptive_avg_pool2d(x, {1, 1});
  adaptive_max_pool2d(x, {1, 1}), interpolate(x, {.size = {2}});
  batch_norm(x, x, x, {}), layer_norm(x, {1}), group_norm(x, 1), normalize(x);
  conv1d(x, x), dropout2d(x);
  embedding(x, x), dropout(x), scaled_dot_product_attention(x, x, x);
  nn::then_relu(), nn::then_leaky_relu(), nn::then_add_relu(x);
  linear(x, x, x, nn::then_relu()), conv2d(x, x, x, {}, nn::then_relu());
  nn::cross_entropy(x, x), nn::nll_loss(x, x), nn::mse_loss(x, x), nn::l1_loss(x, x);
  nn::huber_loss(x, x), nn::smooth_l1_loss(x, x), nn::bce_with_logits(x, x), nn::bce_loss(x, x),
      nn::kl_div(x, x);
  nn::CrossEntropyLoss(), nn::NLLLoss(), nn::MSELoss(), nn::L1Loss(), nn::SmoothL1Loss();
  nn::HuberLoss(), nn::BCELoss(), nn::BCEWithLogitsLoss(), nn::KLDivLoss();
  nn::pixel_shuffle(x, 1), nn::pixel_unshuffle(x, 1);
  nn::init::uniform_(x), nn::init::normal_(x), nn::init::trunc_normal_(x);
  nn::init::constant_(x, 0), nn::init::zeros_(x), nn::init::ones_(x), nn::init::eye_(x);
  nn::init::dirac_(x), nn::init::xavier_uniform_(x), nn::init::xavier_normal_(x);
  nn::init::kaiming_uniform_(x), nn::init::kaiming_normal_(x), nn::init::orthogonal_(x);
  nn::init::calculate_gain(nn::init::Nonlinearity::relu);
}

[[maybe_unused]] void training() {
  const std::vector<Tensor> parameters{ones({1})};
  optim::SGD sgd({optim::ParamGroup<optim::SGDOptions>{parameters, {.lr = 0.1}}});
  optim::Adam adam(parameters);
  optim::AdamW{parameters};
  optim::RMSprop{parameters};
  optim::Adadelta{parameters};
  sgd.step(), sgd.zero_grad(), sgd.load_state_dict(sgd.state_dict()), sgd.set_lr(0.1);
  optim::clip_grad_norm(parameters, 1), optim::clip_grad_value(parameters, 1);
  optim::clip_grads_with_norm(parameters, 1, optim::total_grad_norm(parameters));
  optim::StepLR(sgd, {.step_size = 1}), optim::MultiStepLR(sgd, {.milestones = {1}});
  optim::CosineAnnealingLR(sgd, {.T_max = 1}), optim::LinearLR{sgd};
  optim::OneCycleLR(adam, {.max_lr = {1}, .total_steps = 2});
  optim::LambdaLR(sgd, [](std::int64_t) { return 1; }), optim::ReduceLROnPlateau(sgd).step(0.5);
  optim::CosineAnnealingWarmRestarts(sgd, {.T_0 = 1});
  const optim::ExponentialLROptions slowly{.gamma = 0.9};
  optim::SequentialLR(sgd, {.schedulers = {std::make_shared<optim::ExponentialLR>(sgd, slowly)}});

  data::DataLoader loader(data::Mnist(), {.sampler = std::make_shared<data::RandomSampler>(1)});
  const data::DataLoaderOptions batches{.batch_sampler =
                                            std::shared_ptr<const data::BatchSampler>()};
  const std::shared_ptr<const data::Sampler> in_order =
      std::make_shared<data::SequentialSampler>(1);
  const data::TensorDataset rows(ones({2, 3}), ones({2}));
  data::CsvDataset("").size();
  const data::ConcatDataset twice(rows, data::Subset(rows, {0}));
  data::random_split(twice, {.fractions = {0.5, 0.5}});
  data::WeightedRandomSampler({1, 2}, 2).size();
  data::ImageSet set(data::Cifar10(""));
  set = data::ImageSet(data::Cifar100("")), set = data::ImageSet(data::ImageFolder(""));
  set = data::ImageSet(data::FakeData(1, {3, 8, 8}, 2));
  data::Compose({data::Resize(8), data::CenterCrop(8), data::RandomCrop(8), data::Pad(1),
                 data::RandomHorizontalFlip(), data::RandomResizedCrop(8)});
  set = data::ImageSet(data::Lmdb("")), data::LmdbWriter("").commit();
  const data::Normalize normalize{{0.5}, {0.5}};
  io::write_png("", io::read_image(""));
  io::save_safetensors("", io::load_safetensors("").tensors);
  io::save_pickle("", io::load_pickle(""));
  io::save_pickle("", io::PickleValue::state_dict(nn::Linear(1, 1).state_dict()));
  io::save_npy("", io::load_npy("")), io::save_npz("", io::load_npz(""));
  io::read_csv("").values.sum();
  onnx::save(nn::Linear(1, 1), {zeros({2, 1})}, "");
  nn::strip_wrappers(io::load_state_dict(""));
  nn::wrapper_prefix({});

  device_count(DeviceType::cuda), runtime(Device()).synchronize_device(0), memory_stats(Device());
  reset_peak_memory(Device()), release_cached_memory(Device());
  set_current_stream(Stream(current_stream(Device())));
  set_current_stream(ExternalStream(Device(DeviceType::cuda), nullptr).get());
  graph::Step step = graph::capture([] {});
  step(), step.reset(), graph::why_not_capturable([] {});
  set_num_threads(1);
  const Scoped deterministic(&ThreadState::deterministic, true);
  const autograd::Autocast autocast(DeviceType::cpu);
  set_float32_matmul_precision("high");
  backends::cuda::matmul::set_allow_tf32(true);
  backends::cudnn::conv::set_fp32_precision("ieee");
}

[[maybe_unused]] void ranks() {
  const std::shared_ptr<comm::ProcessGroup> group = comm::init_process_group();
  nn::Sequential model{parallel::SyncBatchNorm2d(3, group->subgroup({0, 1}))};
  parallel::convert_sync_batchnorm(model, group->duplicate());
  parallel::DistributedDataParallel ddp(model, group);
  parallel::DataParallel dp(model);
  parallel::Pipeline pipe({model, model});
  const std::vector<parallel::Schedule> schedules = {
      parallel::gpipe(2, 2), parallel::one_f_one_b(2, 2),
      parallel::interleaved_one_f_one_b(2, 2, 2), parallel::zero_bubble_v(2, 2),
      parallel::dual_pipe_v(2, 4)};
  const data::TensorDataset set(zeros({4, 2}), zeros({4}));
  const auto sampler = std::make_shared<data::DistributedSampler>(
      set.size(),
      data::DistributedSamplerOptions{.num_replicas = group->size(), .rank = group->rank()});
  const data::DataLoader loader(set, {.batch_size = 2, .sampler = sampler});
  const comm::Mesh mesh(group, {{"dp", 2}, {"tp", 2}});
  const parallel::Collectives tp(mesh["tp"]);
  parallel::ZeroRedundancyOptimizer adam(optim::Adam(model.parameters()), group);
  const parallel::FullySharded sharded = parallel::fully_shard(
      nn::Linear(1, 1), group, {.mp_policy = parallel::MixedPrecisionPolicy{}});
  const parallel::Parallelized halves = parallel::parallelize(model, *mesh["tp"],
                                                              {{"0", parallel::ColwiseParallel{}},
                                                               {"1", parallel::RowwiseParallel{}},
                                                               {"2", parallel::SequenceParallel{}},
                                                               {"3", parallel::HeadParallel{}},
                                                               {"4", parallel::VocabParallel{}},
                                                               {"5", parallel::DropoutParallel{}}});
  parallel::context_parallel(model, *mesh["tp"]);
  parallel::part_of_sequence(zeros({2, 2}), *mesh["tp"], 1);
  parallel::cross_entropy(halves.ranks(), zeros({1, 1}), zeros({1}, DType::i64), 2);
  const auto no_sync = sharded.no_sync();
  sharded.unshard();
  sharded.clip_grad_norm(1);
  sharded.state_of(adam).state_dict();
  const parallel::Horovod hvd(group);
  parallel::DistributedOptimizer sgd(hvd, optim::SGD(model.parameters(), {.lr = 0.1}),
                                     model.named_parameters());
}

const std::string& page() {
  static const std::string text = testing::read_file("docs/from_pytorch.md");
  return text;
}

TEST(FromPyTorch, TheProgramIsTheOneThatIsBuilt) {
  const std::string program = testing::read_file("tests/docs/side_by_side.cc");
  EXPECT_NE(page().find("```cpp\n" + program + "```\n"), std::string::npos);
}

TEST(FromPyTorch, TheCodeInPlaceOfWhatIsMissingIsTheOneThatIsTested) {
  const std::string code = testing::read_file("tests/docs/in_place_of.inc");
  EXPECT_NE(page().find("```cpp\n" + code + "```\n"), std::string::npos);
}

TEST(FromPyTorch, ALayerForImagesPoolsAndWidensSequences) {
  manual_seed(0);
  const Tensor x = randn({2, 3, 9}, DType::f64);
  const OfSequence max_pool(nn::MaxPool2d({1, 3}, {.stride = nn::Pair(1, 2)}));
  EXPECT_TRUE(equal(max_pool(x), x.unfold(2, 3, 2).amax(-1)));
  EXPECT_TRUE(equal(max_pool(x[0]), max_pool(x)[0]));
  const OfSequence avg_pool(nn::AvgPool2d({1, 3}));
  EXPECT_TRUE(allclose(avg_pool(x), x.unfold(2, 3, 3).mean(-1), 1e-12, 1e-12));
  EXPECT_EQ(OfSequence(nn::AdaptiveAvgPool2d({1, 4}))(x).shape(), (Shape{2, 3, 4}));
  EXPECT_TRUE(equal(max_pool2d(x.unsqueeze(2), {.kernel = {1, 3}, .stride = {1, 3}}).squeeze(2),
                    x.unfold(2, 3, 3).amax(-1)));

  // The transposed convolution is conv1d's gradient: both products are one sum of u w x. In f64
  // such a sum of some hundreds of terms is exact to about 1e-13.
  OfSequence widen(
      nn::ConvTranspose2d(3, 2, {1, 4}, {.stride = {1, 2}, .padding = {0, 1}, .bias = false}));
  widen.to(DType::f64);
  const Tensor y = widen(x), u = randn({2, 2, 18}, DType::f64);
  ASSERT_EQ(y.shape(), u.shape());
  const Tensor back = conv1d(u, widen.layer.weight.squeeze(2), {}, {.stride = 2, .padding = 1});
  EXPECT_NEAR((u * y).sum().item<double>(), (back * x).sum().item<double>(), 1e-12);
}

TEST(FromPyTorch, AConvolutionOfVolumesIsTheSumOverItsWindows) {
  manual_seed(0);
  const Tensor x = randn({2, 3, 4, 5, 5}, DType::f64), w = randn({2, 3, 2, 3, 3}, DType::f64);
  const Tensor y = conv3d(x, w, {.padding = {1, 1}});
  ASSERT_EQ(y.shape(), (Shape{2, 2, 3, 5, 5}));
  for (std::int64_t d = 0; d < 3; ++d) {
    Tensor want = zeros({2, 2, 5, 5}, DType::f64);
    for (std::int64_t k = 0; k < 2; ++k) {
      want = want + conv2d(x.select(2, d + k), w.select(2, k), {}, {.padding = {1, 1}});
    }
    EXPECT_TRUE(allclose(y.select(2, d), want, 1e-12, 1e-12));
  }
}

// By PyTorch 2.11: manual_seed(0), nn.TransformerDecoderLayer(8, 2, 16, dropout=0.0), a causal
// mask.
TEST(FromPyTorch, TheDecoderLayerIsPyTorchs) {
  manual_seed(0);
  const DecoderLayer layer(8, 2, 16);
  std::set<std::string> keys;
  for (const auto& [key, value] : layer.state_dict()) keys.insert(key);
  EXPECT_TRUE(keys.contains("multihead_attn.in_proj_weight") && keys.contains("norm3.bias"));
  EXPECT_EQ(keys.size(), 18u);
  const Tensor target = testing::ramp({3, 2, 8}).to(DType::f32);
  const Tensor memory = testing::ramp({5, 2, 8}).to(DType::f32) * 2;
  const Tensor y = layer(target, memory).flatten();
  // A few roundings of f32.
  EXPECT_TRUE(
      testing::near_values(y.slice(0, 0, 4), {-1.143396, 1.521693, 0.820487, 0.246823}, 4e-6));
  EXPECT_TRUE(
      testing::near_values(y.slice(0, 44, 48), {-0.757873, -1.196844, -1.307704, 0.200867}, 4e-6));
}

TEST(FromPyTorch, EveryNameOfTheTablesIsCompiledHere) {
  const std::regex word("[A-Za-z_][A-Za-z_0-9]*"), quoted("`([^`]*)`");
  const auto each = [](const std::string& text, const std::regex& pattern, const auto& f) {
    for (std::sregex_iterator it(text.begin(), text.end(), pattern), end; it != end; ++it) f(*it);
  };
  std::set<std::string> used;
  each(testing::read_file("tests/docs/from_pytorch_test.cc"), word,
       [&](const std::smatch& m) { used.insert(m.str()); });
  int names = 0;
  std::istringstream lines(page());
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("| ")) continue;
    const std::size_t begin = line.find('|', 1), end = line.find('|', begin + 1);
    each(line.substr(begin, end - begin), quoted, [&](const std::smatch& name) {
      ++names;
      each(name[1].str(), word, [&](const std::smatch& part) {
        EXPECT_TRUE(used.count(part.str())) << part.str() << " in " << line;
      });
    });
  }
  EXPECT_GT(names, 200);
}

}  // namespace
}  // namespace weft
