// CIFAR, generated images, folders of pictures; and random transforms in a loader's workers.
#include <algorithm>
#include <cmath>

#include "weft/data/cifar.h"
#include "weft/data/dataloader.h"
#include "weft/data/fake.h"
#include "weft/data/image_folder.h"
#include "weft/data/subset.h"
#include "weft/data/weighted_random_sampler.h"
#include "weft/io/png.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/io/files.h"

namespace weft::data {
namespace {

using testing::CheapScope;
using testing::TempFolder;
using testing::write_file;

using Indices = std::vector<std::int64_t>;

std::string record(std::string labels, int shade) {
  return labels + std::string(3072, static_cast<char>(shade));
}

void write_cifar10(const TempFolder& folder, const std::string& inside) {
  std::filesystem::create_directories(folder.path(inside));
  for (int i = 1; i <= 5; ++i) {
    write_file(folder.path(inside + "/data_batch_" + std::to_string(i) + ".bin"),
               record(std::string(1, static_cast<char>(i)), 10 * i));
  }
  write_file(folder.path(inside + "/test_batch.bin"), record("\11", 200));
}

TEST(Cifar, ReadsTheFolderOrTheOneInIt) {
  for (const char* inside : {".", "cifar-10-batches-bin"}) {
    TempFolder folder;
    write_cifar10(folder, inside);
    const Cifar10 train(folder.root()), test(folder.root(), {.train = false});
    EXPECT_EQ(train.size(), 5);
    EXPECT_EQ(test.size(), 1);
    auto [x, label] = train.get_batch(Indices{4, 0});
    EXPECT_EQ(x.shape(), Shape({2, 3, 32, 32}));
    EXPECT_EQ(x.to_vector<float>()[0], 50.0f / 255.0f);
    EXPECT_EQ(x.to_vector<float>()[3072], 10.0f / 255.0f);
    EXPECT_EQ(label.to_vector<std::int64_t>(), (Indices{5, 1}));
    EXPECT_EQ(test.get_batch(Indices{0}).label.to_vector<std::int64_t>(), Indices{9});
    EXPECT_WEFT_ERROR(train.get_batch(Indices{5}), InvalidArgument, "[cifar10] index 5 is outside");
  }
  TempFolder folder;
  std::filesystem::create_directories(folder.path("cifar-100-binary"));
  write_file(folder.path("cifar-100-binary/train.bin"),
             record("\23\143", 1) + record(std::string("\0\5", 2), 2));
  const Cifar100 set(folder.root());
  EXPECT_EQ(set.get_batch(Indices{0, 1}).label.to_vector<std::int64_t>(), (Indices{99, 5}));
  EXPECT_EQ(set.coarse_labels().to_vector<std::uint8_t>(), (std::vector<std::uint8_t>{19, 0}));
}

TEST(Cifar, SaysWhatIsMissing) {
  const CheapScope cheap;
  TempFolder folder;
  EXPECT_WEFT_ERROR(
      Cifar10(folder.path("none")), Io,
      "[cifar10] " + folder.path("none") +
          ": no such folder; looked for data_batch_1.bin to data_batch_5.bin in it or in its "
          "cifar-10-batches-bin; give the folder in which cifar-10-binary.tar.gz was unpacked at "
          "data/cifar.cc:");
  EXPECT_WEFT_ERROR(Cifar100(folder.root(), {.train = false}), Io,
                    ": no file test.bin (wanted: test.bin) in it or in its cifar-100-binary; give "
                    "the folder in which cifar-100-binary.tar.gz was unpacked at");
  write_cifar10(folder, "cifar-10-batches-bin");
  std::filesystem::remove(folder.path("cifar-10-batches-bin/data_batch_3.bin"));
  EXPECT_WEFT_ERROR(Cifar10(folder.root()), Io,
                    ": no file data_batch_3.bin (wanted: data_batch_1.bin to data_batch_5.bin)");
  write_file(folder.path("cifar-10-batches-bin/data_batch_3.bin"), "x");
  EXPECT_WEFT_ERROR(Cifar10(folder.root()), Io,
                    "1 bytes are no whole number of CIFAR-10's records");
}

TEST(FakeData, FollowsFromSeedAndIndexAlone) {
  const FakeData set(100, {3, 8, 9}, 10, {.seed = 5});
  const auto x = [](const FakeData& from, const Indices& indices) {
    return from.get_batch(indices).x.to_vector<float>();
  };
  const auto three = x(set, {3});
  EXPECT_EQ(three.size(), 216u);
  const auto many = x(set, {9, 3, 7});
  EXPECT_TRUE(std::equal(three.begin(), three.end(), many.begin() + 216));
  EXPECT_NE(three, x(set, {4}));
  EXPECT_NE(three, x(FakeData(100, {3, 8, 9}, 10, {.seed = 6}), {3}));
  EXPECT_EQ(three, x(FakeData(5, {3, 8, 9}, 10, {.seed = 5}), {3}));
  EXPECT_EQ(three, x(FakeData(5, {3, 8, 9}, 10, {.seed = 5, .first = 2}), {1}));
  // The same on every machine: the first bytes of this image.
  const auto bytes = [&](std::size_t i) { return std::lround(three[i] * 255); };
  EXPECT_EQ((std::vector<long>{bytes(0), bytes(1), bytes(215)}), (std::vector<long>{91, 81, 162}));
}

// The mean image of a class differs from the others, and a network can learn the difference.
TEST(FakeData, CanBeLearned) {
  constexpr std::int64_t kClasses = 10, kTrain = 400, kTest = 200, kValues = 3 * 16 * 16;
  const FakeData train(kTrain, {3, 16, 16}, kClasses);
  const FakeData test(kTest, {3, 16, 16}, kClasses, {.first = kTrain});
  const auto all = [](const FakeData& set) {
    Indices indices(static_cast<std::size_t>(set.size()));
    for (std::size_t i = 0; i < indices.size(); ++i) indices[i] = static_cast<std::int64_t>(i);
    return set.get_batch(indices);
  };
  const ImageBatch seen = all(train), unseen = all(test);
  std::vector<std::vector<double>> mean(kClasses, std::vector<double>(kValues));
  std::vector<int> count(kClasses);
  const float* x = seen.x.data<float>();
  for (std::int64_t i = 0; i < kTrain; ++i) {
    const auto label = static_cast<std::size_t>(seen.label.data<std::int64_t>()[i]);
    ++count[label];
    for (std::size_t k = 0; k < kValues; ++k) mean[label][k] += *x++;
  }
  for (std::size_t c = 0; c < kClasses; ++c) {
    EXPECT_NEAR(count[c], 40, 24);  // 4 standard deviations
    for (double& value : mean[c]) value /= count[c];
  }
  int right = 0;
  x = unseen.x.data<float>();
  for (std::int64_t i = 0; i < kTest; ++i, x += kValues) {
    std::vector<double> distance(kClasses);
    for (std::size_t c = 0; c < kClasses; ++c) {
      for (std::size_t k = 0; k < kValues; ++k) distance[c] += std::pow(x[k] - mean[c][k], 2);
    }
    const auto nearest = std::ranges::min_element(distance) - distance.begin();
    right += nearest == unseen.label.data<std::int64_t>()[i] ? 1 : 0;
  }
  EXPECT_EQ(right, kTest);
}

TEST(FakeData, RefusesWhatCannotBe) {
  EXPECT_WEFT_ERROR(FakeData(1, {3, 8}, 10), Shape, "[channels, height, width], got [3,8]");
  EXPECT_WEFT_ERROR(FakeData(1, {3, 0, 8}, 10), Shape, "got [3,0,8]");
  EXPECT_WEFT_ERROR(FakeData(-1, {3, 8, 8}, 10), InvalidArgument, "size is -1");
  EXPECT_WEFT_ERROR(FakeData(1, {3, 8, 8}, 0), InvalidArgument, "classes is 0");
  EXPECT_WEFT_ERROR(FakeData(1, {3, 8, 8}, 1, {.first = -2}), InvalidArgument, "first is -2");
}

void write_picture(const std::string& path, int shade, int height = 2, int width = 3) {
  io::write_png(path, io::Image{width, height, 1,
                                std::vector<std::uint8_t>(static_cast<std::size_t>(height * width),
                                                          static_cast<std::uint8_t>(shade))});
}

// Two classes in unsorted order: dog has three pictures, Cat one.
void write_folder(const TempFolder& folder) {
  std::filesystem::create_directories(folder.path("dog/inner"));
  std::filesystem::create_directories(folder.path("Cat"));
  write_picture(folder.path("dog/b.png"), 30);
  write_picture(folder.path("dog/a.PNG"), 20);
  write_picture(folder.path("dog/inner/A.jpg"), 40);  // its bytes say that it is a PNG
  write_picture(folder.path("Cat/z.jpeg"), 10);
  write_file(folder.path("dog/notes.txt"), "no picture");
  write_file(folder.path("readme.png"), "in no class");
}

TEST(ImageFolder, ClassesAndSamplesAreTorchvisions) {
  TempFolder folder;
  write_folder(folder);
  const ImageFolder set(folder.root());
  EXPECT_EQ(set.classes(), (std::vector<std::string>{"Cat", "dog"}));
  ASSERT_EQ(set.size(), 4);
  EXPECT_EQ(set.samples()[0].path, folder.path("Cat/z.jpeg"));
  EXPECT_EQ(set.samples()[1].path, folder.path("dog/a.PNG"));
  EXPECT_EQ(set.samples()[3].path, folder.path("dog/inner/A.jpg"));
  auto [x, label] = set.get_batch(Indices{0, 1, 2, 3});
  EXPECT_EQ(x.shape(), Shape({4, 3, 2, 3}));
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(x.to_vector<float>()[i * 18 + 17], static_cast<float>(10 * (i + 1)) / 255.0f);
  }
  EXPECT_EQ(label.to_vector<std::int64_t>(), (Indices{0, 1, 1, 1}));
}

TEST(ImageFolder, ListsEachFolderOfAClassOnceWhateverLinksLeadToIt) {
  TempFolder folder;
  write_folder(folder);  // Cat/z.jpeg, and three in dog
  const auto paths = [&] {
    std::vector<std::string> all;
    const ImageFolder set(folder.root());
    for (const ImageFolder::Sample& sample : set.samples()) {
      all.push_back(std::to_string(sample.label) + sample.path.substr(folder.root().size()));
    }
    return all;
  };
  const auto without = paths();
  ASSERT_EQ(without.size(), 4u);
  using std::filesystem::create_directory_symlink;
  create_directory_symlink(".", folder.path("dog/again"));
  EXPECT_EQ(paths(), without);
  create_directory_symlink(folder.path("dog"), folder.path("dog/inner/up"));  // 2^40 paths
  EXPECT_EQ(paths(), without);
  create_directory_symlink("inner", folder.path("dog/before_inner"));  // its own path counts
  EXPECT_EQ(paths(), without);

  // Links to another class: as in torchvision, these pictures have both labels.
  create_directory_symlink("../Cat", folder.path("dog/cats"));
  auto both = without;
  both.insert(both.begin() + 3, "1/dog/cats/z.jpeg");
  EXPECT_EQ(paths(), both);
  create_directory_symlink("Cat", folder.path("kitten"));  // a separate class
  both.push_back("2/kitten/z.jpeg");
  EXPECT_EQ(paths(), both);

  create_directory_symlink("nowhere", folder.path("dog/broken"));
  create_directory_symlink("itself", folder.path("dog/itself"));
  EXPECT_EQ(paths(), both);
}

TEST(ImageFolder, RefusesFoldersThatAreNone) {
  const CheapScope cheap;
  TempFolder folder;
  EXPECT_WEFT_ERROR(ImageFolder(folder.path("none")), Io, "none: cannot be listed: No such file");
  EXPECT_WEFT_ERROR(ImageFolder(folder.root()), Io, "no sub-folders; needs one for each class");
  std::filesystem::create_directories(folder.path("empty"));
  EXPECT_WEFT_ERROR(ImageFolder(folder.root()), Io,
                    "class \"empty\" has no pictures: no file ends in .jpg, .jpeg or .png");
}

TEST(ImageFolder, ErrorsOfAWorkerNameTheFile) {
  TempFolder folder;
  write_folder(folder);
  const auto run = [&](int workers, Transform transform = nullptr) {
    DataLoader loader(ImageFolder(folder.root(), {.format = {.transform = std::move(transform)}}),
                      {.batch_size = 4, .workers = workers});
    for (auto& batch : loader) (void)batch;
  };
  for (const int workers : {0, 2}) {
    write_picture(folder.path("dog/b.png"), 30);
    EXPECT_NO_THROW(run(workers));
    write_picture(folder.path("dog/b.png"), 30, 5, 3);
    EXPECT_WEFT_ERROR(run(workers), Shape, "image 2 is [3,5,3], the batch is of [3,2,3]");
    EXPECT_NO_THROW(run(workers, Resize(4, 4)));
    write_file(folder.path("dog/b.png"), "\x89PNG and no more");
    EXPECT_WEFT_ERROR(run(workers), Io, folder.path("dog/b.png") + ": damaged: ");
    std::filesystem::remove(folder.path("dog/b.png"));
    write_picture(folder.path("dog/b.png"), 30);
    EXPECT_WEFT_ERROR(run(workers, CenterCrop(9)), Shape, "has no window of 9 x 9");
  }
}

// Seeded per sample: neither the number of workers nor the batch size changes what is drawn; the
// next epoch draws new numbers.
TEST(RandomTransforms, DependOnEpochAndSampleAlone) {
  const Compose transform({RandomCrop(8, 3), RandomHorizontalFlip(), RandomResizedCrop(6)});
  const auto epochs = [&](std::int64_t batch_size, int workers) {
    manual_seed(11);
    DataLoader loader(FakeData(24, {3, 8, 8}, 4, {.format = {.transform = transform}}),
                      {.batch_size = batch_size, .shuffle = true, .workers = workers});
    std::vector<std::vector<float>> result;
    for (int epoch = 0; epoch < 2; ++epoch) {
      std::vector<float>& all = result.emplace_back();
      for (auto& [x, label] : loader) {
        const auto values = x.template to_vector<float>();
        all.insert(all.end(), values.begin(), values.end());
      }
    }
    return result;
  };
  const auto alone = epochs(4, 0);
  EXPECT_EQ(alone[0].size(), 24u * 3 * 6 * 6);
  EXPECT_EQ(alone, epochs(4, 1));
  EXPECT_EQ(alone, epochs(4, 3));
  EXPECT_EQ(alone, epochs(5, 2));

  // Sample 0 in two epochs, not shuffled.
  DataLoader loader(FakeData(1, {3, 32, 32}, 4, {.format = {.transform = RandomResizedCrop(6)}}));
  std::vector<std::vector<float>> seen;
  for (int epoch = 0; epoch < 2; ++epoch) {
    for (auto& [x, label] : loader) seen.push_back(x.to_vector<float>());
  }
  EXPECT_NE(seen[0], seen[1]);
}

TEST(RandomTransforms, AnIndexHasOneDrawInAnEpoch) {
  const FakeData pictures(3, {3, 32, 32}, 4, {.format = {.transform = RandomResizedCrop(6)}});
  std::vector<std::vector<float>> seen;
  DataLoader listed(Subset(pictures, {2, 2}), {.batch_size = 1});
  for (int epoch = 0; epoch < 2; ++epoch) {
    for (auto& [x, label] : listed) seen.push_back(x.to_vector<float>());
  }
  const auto sampler =
      std::make_shared<WeightedRandomSampler>(std::vector<double>{0, 0, 1}, std::int64_t{2});
  DataLoader drawn(pictures, {.batch_size = 1, .workers = 2, .sampler = sampler});
  for (auto& [x, label] : drawn) seen.push_back(x.to_vector<float>());
  ASSERT_EQ(seen.size(), 6U);
  EXPECT_EQ(seen[0], seen[1]);
  EXPECT_EQ(seen[2], seen[3]);
  EXPECT_EQ(seen[4], seen[5]);
  EXPECT_NE(seen[0], seen[2]);
}

}  // namespace
}  // namespace weft::data
