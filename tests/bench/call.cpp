/*
 * call.cpp - what it costs to call an operator by its name from C: the sum of two tensors of one number, against
 * the same call in C++ in turns of 2000 calls, and against Python's own where PYTHON (python3) can import torch.
 * The difference is to be at most 1500 ns.
 */
#include "bench.hpp"

#include <string>

#include <ATen/ops/add.h>

#include <memtrain/call.h>

namespace {

constexpr int calls = 2000, turns = 201;

template <class Call> double nanoseconds(Call &&call) {
    double start = bench::now();
    for (int i = 0; i < calls; i++) call();
    return 1e9 * (bench::now() - start) / calls;
}

/* The same loop in Python; "none" where there is no torch. */
std::string of_python() {
    const char *python = std::getenv("PYTHON");
    std::string command =
        std::string(python && *python ? python : "python3") +
        " -c 'import torch, timeit; torch.set_num_threads(1)\n"
        "a, b = torch.tensor(1.0), torch.tensor(2.0)\n"
        "t = sorted(timeit.repeat(lambda: torch.add(a, b), number=2000, repeat=201))\n"
        "print(round(t[100] / 2000 * 1e9))' 2>/dev/null";
    char line[64] = "";
    FILE *pipe = popen(command.c_str(), "r");
    if (!pipe) return "none";
    bool read = std::fgets(line, sizeof line, pipe) != nullptr;
    if (pclose(pipe) != 0 || !read) return "none";
    return std::string(line, std::string(line).find_first_of("\r\n"));
}

} // namespace

int main() {
    mt_tensor *a = nullptr, *b = nullptr, *out = nullptr;
    float one = 1, two = 2;
    bench::must(mt_torch_set_threads(1), "threads");
    bench::must(mt_tensor_from_memory(&one, MT_FLOAT32, 0, nullptr, &a), "a");
    bench::must(mt_tensor_from_memory(&two, MT_FLOAT32, 0, nullptr, &b), "b");
    bench::must(mt_tensor_new(&out), "out");
    const at::Tensor &x = memtrain::tensor(a), &y = memtrain::tensor(b);
    const mt_value values[] = {mt_value_tensor(a), mt_value_tensor(b)};
    at::Tensor sum;
    mt_value result;
    auto cpp = [&] { sum = at::add(x, y); };
    auto into = [&] {
        bench::must(mt_call_into("aten::add.Tensor", values, 2, nullptr, 0, out), "call");
    };
    auto any = [&] { bench::must(mt_call_into("aten::add", values, 2, nullptr, 0, out), "call"); };
    auto fresh = [&] {
        bench::must(mt_call("aten::add", values, 2, nullptr, 0, &result, 1, nullptr), "call");
        mt_values_free(&result, 1);
    };
    std::vector<double> times[4], over[3];
    for (int i = 0; i < turns; i++) {
        times[0].push_back(nanoseconds(cpp));
        times[1].push_back(nanoseconds(into));
        times[2].push_back(nanoseconds(any));
        times[3].push_back(nanoseconds(fresh));
        for (int k = 0; k < 3; k++) over[k].push_back(times[k + 1].back() - times[0].back());
    }
    std::printf("call  over_cpp_ns=%.0f  cpp_ns=%.0f call_into_ns=%.0f without_overload_ns=%.0f "
                "new_result_ns=%.0f (over %.0f, %.0f) python_ns=%s turns=%d\n",
                bench::median(over[0]), bench::median(times[0]), bench::median(times[1]),
                bench::median(times[2]), bench::median(times[3]), bench::median(over[1]),
                bench::median(over[2]), of_python().c_str(), turns);
    mt_tensor_free(a);
    mt_tensor_free(b);
    mt_tensor_free(out);
    return 0;
}
