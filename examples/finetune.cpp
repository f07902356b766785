/*
 * finetune.cpp - a network that tells digits learns to tell even from odd ones: weights by name, a frozen body and a new
 * last layer, inside a memory budget: build/examples/finetune 8MiB
 */
#include <cstdio>
#include <memory>

#include <memtrain/trainer.hpp>
#include <torch/torch.h>

extern "C" {
#include "plain/digits.h"
#include "plain/help.h"
}

struct Net : torch::nn::Module {
    torch::nn::Sequential body{torch::nn::Conv2d(1, 32, 3), torch::nn::ReLU(),
                               torch::nn::MaxPool2d(2),     torch::nn::Conv2d(32, 64, 3),
                               torch::nn::ReLU(),           torch::nn::MaxPool2d(2)};
    torch::nn::Linear head;

    explicit Net(int64_t classes) : head(256, classes) {
        register_module("body", body);
        register_module("head", head);
    }
    torch::Tensor forward(const torch::Tensor &x) { return head(body->forward(x).flatten(1)); }
};

memtrain::Output loss(Net &net, const memtrain::Tensors &batch) {
    torch::Tensor logits = net.forward(batch[0]);
    return {torch::cross_entropy_loss(logits, batch[1]), memtrain::correct(logits, batch[1])};
}

/* Digits drawn from a seed, labelled by what is left when they are divided by classes. */
memtrain::Source digits(uint64_t seed, int64_t count, int64_t classes) {
    torch::Tensor pictures = torch::empty({count, 1, SIDE, SIDE});
    for (int64_t n = 0; n < count; n++)
        draw_picture(seed, static_cast<uint64_t>(n), pictures[n].data_ptr<float>());
    return memtrain::rows({pictures, torch::arange(count).remainder(DIGITS).remainder(classes)});
}

/* Epochs until three in a row are not better; the accuracy of the best one. */
double train(memtrain::Trainer &trainer, const char *name, int64_t classes) {
    mt_fit_options options = MT_FIT_OPTIONS_INIT;
    memtrain::Watch watch;
    options.batch = 128, options.epochs = 8, options.patience = 3;
    options.metric = 0, options.maximise = 1; /* the accuracy */
    watch.epoch = [name](const mt_fit_report &, const mt_epoch_report &epoch) {
        std::printf("%s  epoch %d  loss %.4f  accuracy %.1f %%\n", name,
                    static_cast<int>(epoch.epoch), epoch.loss, 100 * epoch.eval_metrics[0]);
    };
    return trainer.fit(digits(1, 2000, classes), options, watch, digits(2, 500, classes)).best;
}

int main(int argc, char **argv) try {
    if (plain_help_asked(argc, argv, "digits first, then even or odd ones, in a memory budget",
                         " [BUDGET, such as 8MiB]"))
        return 0;
    mt_reexec_passive(argv);
    std::size_t budget;
    memtrain::must(mt_parse_size(argc > 1 ? argv[1] : "8MiB", 0, &budget));
    memtrain::must(mt_device_set_budget("cpu", budget));
    torch::manual_seed(1);
    const char weights[] = "digits.safetensors";
    {
        memtrain::Trainer first(memtrain::model(std::make_shared<Net>(DIGITS), {"accuracy"}, loss));
        train(first, "digits", DIGITS);
        memtrain::must(mt_model_save_weights(first.model(), weights));
    }
    mt_parameter_group body = MT_PARAMETER_GROUP_INIT;
    body.pattern = "body.*";
    body.frozen = 1; /* without memory for gradients or an optimiser's state */
    mt_torch_options options = MT_TORCH_OPTIONS_INIT;
    options.groups = &body, options.group_count = 1;
    memtrain::Trainer trainer(memtrain::model(std::make_shared<Net>(2), {"accuracy"}, loss),
                              options);
    mt_weights_options by_name = MT_WEIGHTS_OPTIONS_INIT;
    by_name.skip = "head."; /* of other classes */
    memtrain::must(mt_model_load_weights(trainer.model(), weights, &by_name));
    std::printf("best accuracy %.1f %%\n", 100 * train(trainer, "even or odd", 2));
} catch (const std::exception &error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
}
