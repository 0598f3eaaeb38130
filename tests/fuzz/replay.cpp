// Runs a fuzz target without a fuzzer: the files named on the command line, and, with --random N
// SEED, N inputs made from them by a seeded mutator. Compiles with any compiler.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

using Input = std::vector<std::uint8_t>;

Input mutated(const std::vector<Input>& corpus, std::mt19937_64& random) {
  const auto draw = [&](std::size_t below) { return random() % (below == 0 ? 1 : below); };
  Input input = corpus.empty() ? Input{} : corpus[draw(corpus.size())];
  for (std::size_t left = 1 + draw(8); left > 0; --left) {
    const std::size_t at = draw(input.size() + 1);
    const auto byte = static_cast<std::uint8_t>(draw(256));
    switch (draw(5)) {
      case 0:
        input.insert(input.begin() + static_cast<std::ptrdiff_t>(at), byte);
        break;
      case 1:
        if (at < input.size()) input.erase(input.begin() + static_cast<std::ptrdiff_t>(at));
        break;
      case 2:
        if (at < input.size()) input[at] = byte;
        break;
      case 3:
        if (at < input.size()) input[at] ^= static_cast<std::uint8_t>(1U << draw(8));
        break;
      default:
        if (!corpus.empty()) {
          const Input& other = corpus[draw(corpus.size())];
          const std::size_t from = draw(other.size() + 1);
          const std::size_t count = draw(other.size() - from + 1);
          const auto begin = other.begin() + static_cast<std::ptrdiff_t>(from);
          input.insert(input.begin() + static_cast<std::ptrdiff_t>(at), begin,
                       begin + static_cast<std::ptrdiff_t>(count));
        }
    }
  }
  if (input.size() > 4096) input.resize(4096);
  return input;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<Input> corpus;
  std::uint64_t rounds = 0;
  std::uint64_t seed = 1;
  for (int index = 1; index < argc; ++index) {
    if (std::strcmp(argv[index], "--random") == 0 && index + 2 < argc) {
      rounds = std::strtoull(argv[index + 1], nullptr, 0);
      seed = std::strtoull(argv[index + 2], nullptr, 0);
      index += 2;
      continue;
    }
    std::ifstream file(argv[index], std::ios::binary);
    corpus.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  for (const Input& input : corpus) LLVMFuzzerTestOneInput(input.data(), input.size());
  std::mt19937_64 random(seed);
  for (std::uint64_t round = 0; round < rounds; ++round) {
    const Input input = mutated(corpus, random);
    std::ofstream("last-input", std::ios::binary)
        .write(reinterpret_cast<const char*>(input.data()),
               static_cast<std::streamsize>(input.size()));
    LLVMFuzzerTestOneInput(input.data(), input.size());
  }
  std::remove("last-input");
  std::printf("%zu files, %lu random inputs\n", corpus.size(), static_cast<unsigned long>(rounds));
  return 0;
}
