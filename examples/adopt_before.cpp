/*
 * A loop as programs with libtorch have it: a small network learns to tell digits.
 *
 * It is here twice: adopt_before.cpp has libtorch alone, and adopt.cpp is the same with libmemtrain, so
 * that the batches go through inside a memory budget. docs/adopt.md goes through what differs.
 */
#include <cstdio>
#include <memory>
#include <optional>

#include <torch/torch.h>

extern "C" {
#include "plain/digits.h"
#include "plain/help.h"
}

/* Two convolutions and two linear layers. */
struct Net : torch::nn::Module {
    torch::nn::Conv2d conv1{torch::nn::Conv2dOptions(1, 32, 3)};
    torch::nn::Conv2d conv2{torch::nn::Conv2dOptions(32, 64, 3)};
    torch::nn::Linear fc1{256, 128}, fc2{128, DIGITS};
    torch::nn::Dropout dropout;

    explicit Net(double rate = 0.25) : dropout(rate) {
        register_module("conv1", conv1);
        register_module("conv2", conv2);
        register_module("fc1", fc1);
        register_module("fc2", fc2);
        register_module("dropout", dropout);
    }

    torch::Tensor forward(torch::Tensor x) {             /* [B, 1, 16, 16] */
        x = torch::max_pool2d(torch::relu(conv1(x)), 2); /* [B, 32, 7, 7] */
        x = torch::max_pool2d(torch::relu(conv2(x)), 2); /* [B, 64, 2, 2] */
        x = torch::relu(fc1(dropout(x.flatten(1))));     /* [B, 128] */
        return torch::log_softmax(fc2(dropout(x)), 1);   /* [B, DIGITS] */
    }
};

/* Pictures of digits, drawn from a seed. */
struct Digits : torch::data::datasets::Dataset<Digits> {
    uint64_t seed;
    size_t count;

    Digits(uint64_t from, size_t pictures) : seed(from), count(pictures) {}

    torch::data::Example<> get(size_t n) override {
        torch::Tensor picture = torch::empty({1, SIDE, SIDE});
        draw_picture(seed, n, picture.data_ptr<float>());
        return {picture, torch::tensor(static_cast<int64_t>(n % DIGITS))};
    }
    std::optional<size_t> size() const override { return count; }
};

template <class Sampler> auto loader(Digits digits, size_t batch) {
    return torch::data::make_data_loader<Sampler>(digits.map(torch::data::transforms::Stack<>()),
                                                  batch);
}

/* One pass over the training pictures; the mean loss. */
template <class Loader> double train(Net &net, Loader &batches, torch::optim::SGD &optimizer) {
    double sum = 0, count = 0;
    net.train();
    for (auto &batch : batches) {
        double size = static_cast<double>(batch.target.size(0));
        optimizer.zero_grad();
        torch::Tensor loss = torch::nll_loss(net.forward(batch.data), batch.target);
        loss.backward();
        optimizer.step();
        sum += size * loss.item<double>();
        count += size;
    }
    return sum / count;
}

/* The mean loss of pictures that are not trained with, and the share of them that is told right. */
template <class Loader> std::pair<double, double> test(Net &net, Loader &batches) {
    torch::NoGradGuard no_grad;
    double sum = 0, right = 0, count = 0;
    net.eval();
    for (auto &batch : batches) {
        torch::Tensor output = net.forward(batch.data);
        sum += torch::nll_loss(output, batch.target, {}, torch::Reduction::Sum)
                   .template item<double>();
        right += output.argmax(1).eq(batch.target).sum().template item<double>();
        count += static_cast<double>(batch.target.size(0));
    }
    return {sum / count, right / count};
}

int main(int argc, char **argv) try {
    if (plain_help_asked(argc, argv, "a small network learns to tell digits", "")) return 0;
    torch::manual_seed(1);
    auto net = std::make_shared<Net>();
    auto training = loader<torch::data::samplers::RandomSampler>({1, 2000}, 256);
    auto testing = loader<torch::data::samplers::SequentialSampler>({2, 500}, 100);
    torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    for (int epoch = 1; epoch <= 6; epoch++) {
        double loss = train(*net, *training, optimizer);
        auto [test_loss, accuracy] = test(*net, *testing);
        std::printf("epoch %d  loss %.4f  test loss %.4f  accuracy %.1f %%\n", epoch, loss,
                    test_loss, 100 * accuracy);
    }
    return 0;
} catch (const std::exception &error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
}
