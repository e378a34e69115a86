#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "weft/c_api/model.h"
#include "weft/core/base/version.h"
#include "weft/core/runtime/parallel.h"
#include "weft/io/safetensors.h"
#include "weft/nn/activation.h"
#include "weft/nn/any_module.h"
#include "weft/tensor/creation.h"
#include "weft/tests/c_api/program.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/io/files.h"
#include "weft/weft_c.h"

WEFT_C_MODEL("of the program", [] { return weft::nn::ReLU(); })

namespace weft {
namespace {

using testing::TempFolder;

constexpr const char* kModels = "tests/c_api/libmodels.so";

struct Model {
  explicit Model(const char* name, const char* device = "cpu", const char* library = kModels)
      : model(weft_model_open(library, name, device)) {
    EXPECT_TRUE(model) << weft_last_error();
  }
  explicit Model(weft_model* m) : model(m) {}
  ~Model() { weft_model_free(model); }
  operator weft_model*() const { return model; }
  weft_model* model;
};

// A vector of another program, which counts the calls of its deleter.
struct Input {
  explicit Input(std::vector<float> v) : values(std::move(v)) {
    tensor.major = 1;
    tensor.context = this;
    tensor.deleter = [](weft_tensor* t) { ++static_cast<Input*>(t->context)->deleted; };
    tensor.data = values.data();
    tensor.device_type = WEFT_CPU;
    tensor.dimensions = 1;
    tensor.type = WEFT_FLOAT;
    tensor.bits = 32;
    tensor.lanes = 1;
    tensor.shape = &length;
  }
  Input(const Input&) = delete;

  std::vector<float> values;
  std::int64_t length = static_cast<std::int64_t>(values.size());
  weft_tensor tensor = {};
  int deleted = 0;
};

std::vector<float> take(weft_tensor* output) {
  EXPECT_EQ(output->type, WEFT_FLOAT);
  EXPECT_EQ(output->bits, 32);
  EXPECT_EQ(output->device_type, WEFT_CPU);
  std::int64_t count = 1;
  for (int i = 0; i < output->dimensions; ++i) count *= output->shape[i];
  const auto* first =
      reinterpret_cast<const float*>(static_cast<const char*>(output->data) + output->byte_offset);
  std::vector<float> values(first, first + count);
  output->deleter(output);
  return values;
}

// The outputs of one call; empty after an error.
std::vector<std::vector<float>> forward(weft_model* model, std::vector<Input*> inputs) {
  std::vector<weft_tensor*> given, outputs(4);
  for (Input* input : inputs) given.push_back(&input->tensor);
  std::size_t count = outputs.size();
  if (weft_model_forward(model, given.data(), given.size(), outputs.data(), &count)) return {};
  std::vector<std::vector<float>> values;
  for (std::size_t i = 0; i < count; ++i) values.push_back(take(outputs[i]));
  return values;
}

TEST(CApi, SaysItsVersion) {
  EXPECT_EQ(weft_c_version(), WEFT_C_VERSION);
  EXPECT_STREQ(weft_version(), kVersion);
}

TEST(CApi, RunsInAProgramOfC) { EXPECT_EQ(sum_by_pair(kModels), 3) << weft_last_error(); }

TEST(CApi, SharesTheMemoryOfInputsAndReturnsIt) {
  const Model pair("pair");
  Input a({1, 2}), b({10, 20});
  weft_tensor* const inputs[] = {&a.tensor, &b.tensor};
  weft_tensor* outputs[2];
  std::size_t count = 2;
  ASSERT_EQ(weft_model_forward(pair, inputs, 2, outputs, &count), 0) << weft_last_error();
  EXPECT_EQ(count, 2u);
  EXPECT_EQ(b.deleted, 1);
  EXPECT_EQ(a.deleted, 0);  // the second output is a
  EXPECT_EQ(outputs[1]->data, a.values.data());
  EXPECT_EQ(take(outputs[0]), (std::vector<float>{11, 22}));
  outputs[1]->deleter(outputs[1]);
  EXPECT_EQ(a.deleted, 1);
}

TEST(CApi, OutputsOutliveTheModel) {
  weft_tensor* output;
  std::size_t count = 1;
  {
    const Model constant("constant");
    ASSERT_EQ(weft_model_forward(constant, nullptr, 0, &output, &count), 0) << weft_last_error();
  }
  EXPECT_EQ(take(output), std::vector<float>{7});
}

TEST(CApi, ModelsAreInEvaluationMode) {
  const Model mode("mode");
  Input x({3});
  EXPECT_EQ(forward(mode, {&x}), (std::vector<std::vector<float>>{{6}}));
}

TEST(CApi, LoadsWeightsAndKeepsThemIfItCannot) {
  const TempFolder folder;
  const auto save = [&](const char* name, const char* prefix, std::initializer_list<float> weight) {
    io::save_safetensors(folder.path(name),
                         {{prefix + std::string("fc.weight"),
                           from_vector(std::vector<float>(weight), {1, std::ssize(weight)})},
                          {prefix + std::string("fc.bias"), tensor({0.5F})}});
    return folder.path(name);
  };
  const Model net("net");
  Input x({1, 2}), again({1, 2}), later({1, 2});
  ASSERT_EQ(weft_model_load(net, save("plain", "", {3, 4}).c_str()), 0) << weft_last_error();
  EXPECT_EQ(forward(net, {&x}), (std::vector<std::vector<float>>{{11.5}}));
  ASSERT_EQ(weft_model_load(net, save("wrapped", "module.", {5, 6}).c_str()), 0)
      << weft_last_error();
  EXPECT_EQ(forward(net, {&again}), (std::vector<std::vector<float>>{{17.5}}));

  EXPECT_NE(weft_model_load(net, save("wrong", "", {1, 2, 3}).c_str()), 0);
  EXPECT_HAS(weft_last_error(), "fc.weight");
  EXPECT_NE(weft_model_load(net, folder.path("missing").c_str()), 0);
  EXPECT_HAS(weft_last_error(), "missing");
  EXPECT_EQ(forward(net, {&later}), (std::vector<std::vector<float>>{{17.5}}));
}

TEST(CApi, AClonesWeightsAreItsOwn) {
  const TempFolder folder;
  const std::string file = folder.path("weights");
  const auto save = [&](float weight) {
    io::save_safetensors(file, {{"fc.weight", full({1, 2}, weight)}, {"fc.bias", zeros({1})}});
  };
  const Model net("net");
  save(1);
  ASSERT_EQ(weft_model_load(net, file.c_str()), 0) << weft_last_error();
  const Model other(weft_model_clone(net));
  save(2);
  ASSERT_EQ(weft_model_load(net, file.c_str()), 0) << weft_last_error();
  std::thread([&] {
    Input x({1, 2});
    EXPECT_EQ(forward(other, {&x}), (std::vector<std::vector<float>>{{3}}));
  }).join();
  Input x({1, 2});
  EXPECT_EQ(forward(net, {&x}), (std::vector<std::vector<float>>{{6}}));
}

TEST(CApi, InputsAreReturnedAfterEveryError) {
  const Model pair("pair"), throws_int("throws int");
  Input a({1, 2}), b({1, 2, 3}), c({1}), d({1}), e({1});
  EXPECT_TRUE(forward(pair, {&a, &b}).empty());
  EXPECT_HAS(weft_last_error(), "[2]");
  EXPECT_EQ(a.deleted, 1);
  EXPECT_EQ(b.deleted, 1);
  EXPECT_TRUE(forward(pair, {&c}).empty());  // takes two
  EXPECT_EQ(c.deleted, 1);
  EXPECT_TRUE(forward(throws_int, {&d}).empty());
  EXPECT_STREQ(weft_last_error(), "an exception that is no std::exception left the model");
  EXPECT_EQ(d.deleted, 1);
  EXPECT_TRUE(forward(nullptr, {&e}).empty());
  EXPECT_HAS(weft_last_error(), "model is NULL");
  EXPECT_EQ(e.deleted, 1);

  Input f({1}), g({1});
  f.tensor.bits = 16;  // an f16
  weft_tensor* const inputs[] = {&f.tensor, nullptr, &g.tensor};
  std::size_t count = 0;
  EXPECT_NE(weft_model_forward(pair, inputs, 3, nullptr, &count), 0);
  EXPECT_EQ(f.deleted, 1);
  EXPECT_EQ(g.deleted, 1);
}

TEST(CApi, ATensorMayBeSeveralInputs) {
  const Model pair("pair");
  Input a({1, 2}), b({3});
  EXPECT_EQ(forward(pair, {&a, &a}), (std::vector<std::vector<float>>{{2, 4}, {1, 2}}));
  EXPECT_EQ(a.deleted, 1);
  EXPECT_TRUE(forward(pair, {&b, &b, &b}).empty());  // takes two
  EXPECT_EQ(b.deleted, 1);

  Input c({1});
  weft_tensor* const inputs[] = {&c.tensor, nullptr, &c.tensor, nullptr};
  std::size_t count = 0;
  EXPECT_NE(weft_model_forward(pair, inputs, 4, nullptr, &count), 0);
  EXPECT_HAS(weft_last_error(), "an input is NULL");
  EXPECT_EQ(c.deleted, 1);
}

TEST(CApi, SaysHowMuchRoomIsMissing) {
  const Model pair("pair");
  Input a({1}), b({2}), c({1}), d({2});
  weft_tensor* const inputs[] = {&a.tensor, &b.tensor};
  weft_tensor* outputs[1] = {nullptr};
  std::size_t count = 1;
  EXPECT_NE(weft_model_forward(pair, inputs, 2, outputs, &count), 0);
  EXPECT_HAS(weft_last_error(), "the model has 2 outputs, there is room for 1");
  EXPECT_EQ(count, 2u);
  EXPECT_EQ(outputs[0], nullptr);
  EXPECT_EQ(a.deleted, 1);
  weft_tensor* const more[] = {&c.tensor, &d.tensor};
  EXPECT_NE(weft_model_forward(pair, more, 2, nullptr, &count), 0);
  EXPECT_HAS(weft_last_error(), "outputs is NULL");
  EXPECT_EQ(c.deleted, 1);
}

TEST(CApi, DoesNotWriteToWhatIsReadOnly) {
  const Model writer("writer");
  Input free({1}), fixed({1});
  EXPECT_EQ(forward(writer, {&free}), (std::vector<std::vector<float>>{{2}}));
  fixed.tensor.flags = WEFT_READ_ONLY;
  EXPECT_TRUE(forward(writer, {&fixed}).empty());
  EXPECT_EQ(fixed.values, std::vector<float>{1});
}

TEST(CApi, ComputesOnAnotherDeviceThanTheInputs) {
  const Model net("pair", "cpu:1");
  Input a({1, 2}), b({10, 20});
  EXPECT_EQ(forward(net, {&a, &b}), (std::vector<std::vector<float>>{{11, 22}, {1, 2}}))
      << weft_last_error();
}

TEST(CApi, OpensModelsOfTheProgram) {
  const Model relu("of the program", nullptr, nullptr);
  Input x({-1, 2});
  EXPECT_EQ(forward(relu, {&x}), (std::vector<std::vector<float>>{{0, 2}}));
}

// The loader has a lock of its own, which it holds while the models of a new library enter weft's
// list.
TEST(CApi, OpensLibrariesInSeveralThreadsAtATime) {
  const TempFolder folder;
  std::atomic<bool> done = false;
  std::thread other([&] {
    while (!done) const Model again("constant");
  });
  for (int i = 0; i < 40; ++i) {
    const std::string copy = folder.path("lib" + std::to_string(i) + ".so");
    std::filesystem::copy_file(kModels, copy);
    const Model first("constant", "cpu", copy.c_str());
  }
  done = true;
  other.join();
}

TEST(CApi, SaysWhyAModelCannotBeOpened) {
  const auto error = [](const char* library, const char* name, const char* device = "cpu") {
    EXPECT_EQ(weft_model_open(library, name, device), nullptr);
    return std::string(weft_last_error());
  };
  EXPECT_HAS(error("./nowhere.so", "net"), "nowhere.so");
  EXPECT_HAS(error("tests/c_api/libno_models.so", "net"),
             "libno_models.so: no WEFT_C_MODEL in it for this libweft");
  EXPECT_HAS(error(kModels, "nett"), "libmodels.so: no model nett; it has net, pair, constant");
  EXPECT_HAS(error(nullptr, "net"), "the program: no model net; it has of the program");
  EXPECT_HAS(error(kModels, "twice"), "2 models are named twice");
  EXPECT_HAS(error(kModels, "refuses"), "this model cannot be made");
  EXPECT_HAS(error(kModels, nullptr), "name is NULL");
  EXPECT_HAS(error(kModels, "net", "gpu"), "gpu");
  EXPECT_HAS(error(kModels, "pair", "cpu:99"), "[cpu:99] no such device");
}

TEST(CApi, RefusesNull) {
  const Model net("net");
  EXPECT_NE(weft_model_load(nullptr, "x"), 0);
  EXPECT_NE(weft_model_load(net, nullptr), 0);
  EXPECT_HAS(weft_last_error(), "file is NULL");
  EXPECT_EQ(weft_model_clone(nullptr), nullptr);
  std::size_t count = 1;
  weft_tensor* output;
  EXPECT_NE(weft_model_forward(net, nullptr, 1, &output, &count), 0);
  EXPECT_HAS(weft_last_error(), "inputs is NULL");
  EXPECT_NE(weft_model_forward(net, nullptr, 0, &output, nullptr), 0);
  weft_model_free(nullptr);
}

TEST(CApi, SetsTheNumberOfThreads) {
  const int before = num_threads();
  EXPECT_EQ(weft_set_num_threads(3), 0);
  EXPECT_EQ(num_threads(), 3);
  EXPECT_NE(weft_set_num_threads(0), 0);
  EXPECT_EQ(num_threads(), 3);
  set_num_threads(before);
}

TEST(CApi, EachThreadHasItsLastError) {
  EXPECT_NE(weft_set_num_threads(-1), 0);
  const std::string mine = weft_last_error();
  std::thread([] {
    EXPECT_STREQ(weft_last_error(), "");
    EXPECT_EQ(weft_model_clone(nullptr), nullptr);
    EXPECT_HAS(weft_last_error(), "weft_model_clone");
  }).join();
  EXPECT_EQ(weft_last_error(), mine);
}

}  // namespace
}  // namespace weft
